"""The examples of rules, respelled and recast, as lines of a random model."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import torch
from support.respelled import respelled

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import TensorSpec
from fuseconv.graph.nodes import find_op
from fuseconv.proof.example import Text, parse_example
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.soundness import NO_PROGRAM
from fuseconv.proof.traced import trace
from fuseconv.proof.variants import variants
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import Items, Literal, Name, Term

from .grow import Grower, Value

_RECAST = ("f32", "f32", "f16", "bf16")


@lru_cache(maxsize=256)
def _varied(lines: tuple[str, ...]) -> tuple[Text, ...]:
    """The first variants of an example: other dtypes, sizes, ranks, arguments."""
    return tuple(text for _, text in islice(variants(parse_example(lines)), 300))


def spelled(rule: Rule, draw: random.Random) -> Text:
    """Returns one of a rule's examples, now and then one to miss, in some other spelling."""
    examples = [tuple(lines) for lines in rule.examples.hit]
    if draw.random() < 0.08:
        examples = [tuple(miss.program) for miss in rule.examples.miss] or examples
    lines = draw.choice(examples)
    text = parse_example(lines)
    if draw.random() < 0.15:
        text = draw.choice(_varied(lines) or (text,))
    elif draw.random() < 0.7:
        text = _recast(text, draw.choice(_RECAST))
    for _ in range(draw.choice((0, 0, 1, 1, 2, 3))):
        text = _respelled(text, draw)
    return text


def _recast(text: Text, dtype: str) -> Text:
    def change(spec: TensorSpec) -> TensorSpec:
        return replace(spec, dtype=dtype) if spec.dtype in ("f64", "f32") else spec

    return replace(
        text,
        inputs={name: change(spec) for name, spec in text.inputs.items()},
        parameters={name: change(spec) for name, spec in text.parameters.items()},
    )


def _respelled(text: Text, draw: random.Random) -> Text:
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", 0).tensors
    try:
        traced = trace(text, dict(zip(text.parameters, drawn, strict=True)))
    except NO_PROGRAM:
        return text
    found = [other for _, other in respelled(text, traced)]
    if not found:
        return text
    chosen = draw.choice(found)
    fresh = f"s{draw.randrange(10**6)}"  # `respelled` names its own values, the same each time
    lines = []
    for targets, unpacks, call in chosen.lines:
        new = replace(
            call,
            args=tuple(_renamed(term, fresh) for term in call.args),
            kwargs=tuple((name, _renamed(term, fresh)) for name, term in call.kwargs),
        )
        lines.append((tuple(_fresh(name, fresh) for name in targets), unpacks, new))
    return replace(chosen, lines=lines)


def _fresh(name: str, prefix: str) -> str:
    return prefix + name.removeprefix("respelled") if name in ("respelled", "respelled_a") else name


def _renamed(term: Term, prefix: str) -> Term:
    if isinstance(term, Name):
        return Name(_fresh(term.id, prefix))
    return replace(term, items=tuple(_renamed(one, prefix) for one in term.items)) if isinstance(term, Items) else term


def splice(grower: Grower, text: Text) -> bool:
    """Adds a program written as text to a model; says whether all of its lines are in."""
    draw = grower.draw
    symbols: dict[str, Dim] = {}
    for spec in (*text.inputs.values(), *text.parameters.values()):
        for dim in spec.dims():
            symbols.setdefault(dim.name, grower.dim(len(symbols)))
    names: dict[str, str] = {}
    for spec in text.inputs.values():
        shape = tuple(symbols[size.name] if isinstance(size, Dim) else size for size in spec.shape)
        names[spec.name] = _operand(grower, replace(spec, shape=shape)).name
    for spec in text.parameters.values():
        # A parameter has no symbolic size: it is the size of the first.
        names[spec.name] = grower.add_parameter(
            spec.dtype,
            [grower.sizes[0][symbols[size.name].name] if isinstance(size, Dim) else size for size in spec.shape],
        )
    for targets, unpacks, call in text.lines:
        op = find_op(call.op)
        if op is None:
            return False
        args = [_python(term, names) for term in call.args]
        args += [f"{name}={_python(term, names)}" for name, term in call.kwargs]
        fresh = [grower.name() for _ in targets]
        expression = f"torch.ops.{call.op}({', '.join(args)})"
        pooled = not unpacks and (targets[0] in text.returned or draw.random() < 0.2)
        made = grower.add(expression, fresh[0] + ("_all" if unpacks else ""), pooled=pooled)
        if made is None:
            return False
        if unpacks:
            for at, (target, name) in enumerate(zip(targets, fresh, strict=True)):
                if target != "_" and grower.add(f"{made.name}[{at}]", name) is None:
                    return False
        names.update(zip(targets, fresh, strict=True))
    return True


def _operand(grower: Grower, spec: TensorSpec) -> Value:
    """A value of the model that has the dtype and sizes asked for, in some layout; else a new input."""
    draw, dtype = grower.draw, spec.dtype

    def fits(value: Value) -> bool:
        return all(
            isinstance(one, torch.Tensor)
            and str(one.dtype) == f"torch.{_LONG.get(dtype, dtype)}"
            and one.shape == spec.sizes(sizes)
            for one, sizes in zip(value.at, grower.sizes, strict=True)
        )

    found = grower.choose(fits) if draw.random() < 0.6 else None
    if found is None:
        found = grower.add_input(spec)
        floating = grower.choose(lambda value: value.one.dtype.is_floating_point)
        if found.one.dtype.is_floating_point and floating is not None and draw.random() < 0.3:
            mixed = grower.add(f"{found.name} + {floating.name}.mean().to({found.name}.dtype)")
            found = mixed or found
    if draw.random() < 0.25:
        layout = draw.choice(_LAYOUTS).replace("{v}", found.name)
        found = grower.add(layout, exact=found.exact) or found
    return found


_LONG = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32"}
_LONG |= {"i16": "int16", "i8": "int8", "u8": "uint8", "c64": "complex64", "c128": "complex128"}

_LAYOUTS = (
    "torch.stack(({v}, {v}), -1)[..., 0]",
    "{v}.transpose(0, -1).contiguous().transpose(0, -1)",
    "{v}.transpose(-1, -2).clone().transpose(-1, -2)",
    "torch.cat(({v}, {v}), -1)[..., :{v}.shape[-1]]",
    "torch.cat(({v}, {v}), 0)[{v}.shape[0]:]",
    "{v}[None].expand(2, *{v}.shape)[1]",
    "{v}.flip(0).flip(0)",
)
"""The same values in other places of memory."""


def _python(term: Term, names: Mapping[str, str]) -> str:
    if isinstance(term, Name):
        return names[term.id]
    if isinstance(term, Items):
        return "[" + ", ".join(_python(one, names) for one in term.items) + "]"
    assert isinstance(term, Literal)
    if term.is_dtype:
        return f"torch.{_LONG.get(str(term.value), term.value)}"
    if isinstance(term.value, float) and (term.value != term.value or abs(term.value) == float("inf")):
        return f"float('{term.value}')"
    return repr(term.value)
