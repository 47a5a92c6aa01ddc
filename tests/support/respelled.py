"""Programs written as text, spelled otherwise: what a rule finds in one, it must find in the other.

Each variant differs in one place, by what changes no number that the rule could mind: operands of commutative ops
exchanged, sums and products associated otherwise, conversions to the dtype that is there, copies, views undone, dropout
that does nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from fuseconv.graph.aten import facts
from fuseconv.matching.graph import find_op
from fuseconv.proof.example import Text
from fuseconv.proof.traced import Traced
from fuseconv.rulebook.rule_text import Call, Items, Name, Term, parse_line

Line = tuple[tuple[str, ...], bool, Call]

BETWEEN = {
    "to its dtype": ["{y} = aten.to.dtype({x}, {dtype})"],
    "to f64 and back": ["{a} = aten.to.dtype({x}, f64)", "{y} = aten.to.dtype({a}, {dtype})"],
    "contiguous": ["{y} = aten.contiguous.default({x})"],
    "clone": ["{y} = aten.clone.default({x})"],
    "alias": ["{y} = aten.alias.default({x})"],
    "detach": ["{y} = aten.detach.default({x})"],
    "dropout": ["{y} = aten.dropout.default({x}, 0.1, False)"],
    "view as it is": ["{y} = aten.view.default({x}, {shape})"],
    "reshape as it is": ["{y} = aten.reshape.default({x}, {shape})"],
    "transposed twice": ["{a} = aten.transpose.int({x}, 0, -1)", "{y} = aten.transpose.int({a}, 0, -1)"],
    "an axis more and less": ["{a} = aten.unsqueeze.default({x}, 0)", "{y} = aten.squeeze.dim({a}, 0)"],
    "times one": ["{y} = aten.mul.Tensor({x}, 1)"],
}
"""What may stand between a value and who reads it: the same numbers, in the same places."""

RESTRIDED = " to other strides"
"""What the name of a variant says of a copy that has other strides than what it copies: it may be there for them."""

_COPIES = {"contiguous": torch.contiguous_format, "clone": torch.preserve_format}

_FLOATING = ("dropout", "to f64 and back", "times one", "detach")
_SHORT = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_SHORT |= {torch.bool: "bool", torch.int64: "i64", torch.int32: "i32"}


def respelled(text: Text, traced: Traced) -> Iterator[tuple[str, Text]]:
    """Yields what is changed, and the program with that change.

    Args:
        text: the program.
        traced: its graph, for the dtype and rank of every value.
    """
    values = _values(text, traced)
    yield from _commuted(text, values)
    yield from _reassociated(text)
    for at, (_, _, call) in enumerate(text.lines):
        for name in dict.fromkeys(_tensors(call)):
            if name in values and name not in text.parameters:
                for what, lines in BETWEEN.items():
                    between = _filled(what, lines, name, values[name])
                    if between is not None:
                        told = f"{what}{RESTRIDED if is_restrided(what, values[name]) else ''}: {name} of line {at}"
                        yield told, _inserted(text, at, name, between)


def is_restrided(what: str, value: torch.Tensor) -> bool:
    """Whether what stands between is a copy of the value with other strides."""
    return what in _COPIES and torch.empty_like(value, memory_format=_COPIES[what]).stride() != value.stride()


def _values(text: Text, traced: Traced) -> Mapping[str, torch.Tensor]:
    """Every value's fake tensor, by the name it has in the text."""
    values = {node.name.removeprefix("p_"): node.meta["val"] for node in traced.graph.find_nodes(op="placeholder")}
    calls = (node for node in traced.graph.nodes if node.op == "call_function")
    for targets, unpacks, _ in text.lines:
        node = next(calls)
        results = [next(calls) for _ in targets] if unpacks else [node]
        values |= {name: result.meta["val"] for name, result in zip(targets, results, strict=True)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _tensors(call: Call) -> Iterator[str]:
    for term in (*call.args, *(term for _, term in call.kwargs)):
        if isinstance(term, Name):
            yield term.id
        yield from (item.id for item in getattr(term, "items", ()) if isinstance(item, Name))


def _commuted(text: Text, values: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, Text]]:
    for at, (targets, unpacks, call) in enumerate(text.lines):
        op = find_op(call.op)
        if op is not None and facts(op).commutative and not call.kwargs and call.op != "aten.add_.Tensor":
            first, second, *rest = call.args
            if isinstance(second, Name) and second.id in values:
                swapped = replace(call, args=(second, first, *rest))
                yield f"exchanged: line {at}", _with_lines(text, at, 1, [(targets, unpacks, swapped)])


def _reassociated(text: Text) -> Iterator[tuple[str, Text]]:
    """(a . b) . c as a . (b . c), where nobody else reads a . b."""
    for at, (targets, unpacks, outer) in enumerate(text.lines):
        if outer.op not in ("aten.mul.Tensor", "aten.add.Tensor") or outer.kwargs:
            continue
        for place, other in ((0, 1), (1, 0)):
            inner = next((line for line in text.lines if (Name(line[0][0]),) == outer.args[place : place + 1]), None)
            if inner is None or inner[2].op != outer.op or inner[2].kwargs or _readers(text, inner[0][0]) != 1:
                continue
            a, b = inner[2].args
            c = outer.args[other]
            first, second = (b, c) if isinstance(b, Name) else (c, b)
            if not (isinstance(a, Name) and isinstance(first, Name)):
                continue
            new = replace(outer, args=(first, second)), replace(outer, args=(a, Name("respelled")))
            lines = [(("respelled",), False, new[0]), (targets, unpacks, new[1])]
            yield f"associated: line {at}", _without(_with_lines(text, at, 1, lines), inner)


def _readers(text: Text, name: str) -> int:
    return sum(list(_tensors(call)).count(name) for _, _, call in text.lines) + text.returned.count(name)


def _without(text: Text, line: Line) -> Text:
    return replace(text, lines=[other for other in text.lines if other is not line])


def _with_lines(text: Text, at: int, count: int, lines: Sequence[Line]) -> Text:
    return replace(text, lines=[*text.lines[:at], *lines, *text.lines[at + count :]])


def _filled(what: str, lines: Sequence[str], name: str, value: torch.Tensor) -> list[Line] | None:
    """The lines that stand between, `respelled` being the last one's; None where they make no sense for the value."""
    sizes: list[int | torch.SymInt] = list(value.shape)
    symbolic = [at for at, size in enumerate(sizes) if isinstance(size, torch.SymInt)]
    if (what in _FLOATING and not value.is_floating_point()) or len(symbolic) > 1 or value.dtype not in _SHORT:
        return None
    if (what == "transposed twice" and value.dim() < 2) or (what == "to f64 and back" and value.dtype == torch.float64):
        return None
    shape = "[" + ", ".join("-1" if at in symbolic else str(size) for at, size in enumerate(sizes)) + "]"
    words = {"x": name, "y": "respelled", "a": "respelled_a", "dtype": _SHORT[value.dtype], "shape": shape}
    parsed = [parse_line(line.format(**words)) for line in lines]
    return [(line.targets, line.unpacks, line.value) for line in parsed if isinstance(line.value, Call)]


def _inserted(text: Text, at: int, name: str, between: Sequence[Line]) -> Text:
    def renamed(term: Term) -> Term:
        if term == Name(name):
            return Name("respelled")
        return replace(term, items=tuple(map(renamed, term.items))) if isinstance(term, Items) else term

    targets, unpacks, call = text.lines[at]
    kwargs = tuple((key, renamed(term)) for key, term in call.kwargs)
    new = replace(call, args=tuple(map(renamed, call.args)), kwargs=kwargs)
    return _with_lines(text, at, 1, [*between, (targets, unpacks, new)])
