"""Finds an existing op that computes what a subgraph computes. It tries fuseconv's ops first, then fused ATen ops.

An op is a candidate if it computes the results of the subgraph on random inputs, for some order of its tensor operands
and some values of its other arguments. The check of the rule later decides whether the results agree in general.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from typing import Any, NamedTuple

import torch
from torch.fx import Node

import fuseconv.ops  # noqa: F401  # registers the ops
from fuseconv.contract.dtypes import DTYPES
from fuseconv.drafting.examples import Example, dtype_in
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Values
from fuseconv.graph.hazards import check_call
from fuseconv.graph.nodes import arguments
from fuseconv.ops.activation import ACTIVATIONS
from fuseconv.proof.example import example_sizes, graph_of, parse_example

_FUSECONV = (
    *("add_relu", "mul_add", "mul_tanh", "bias_act", "gated_act", "sum_squared", "mean_abs", "rms_norm"),
    *(
        "add_rms_norm",
        "layer_norm_act",
        "add_layer_norm",
        "group_norm_act",
        "linear_act",
        "attention",
        "causal_attention",
        "attention_score",
        "mlp",
    ),
)
_ATEN = (
    *(
        "gelu",
        "hardsigmoid",
        "hardswish",
        "log_sigmoid",
        "mish",
        "relu",
        "relu6",
        "selu",
        "sigmoid",
        "silu",
        "softplus",
    ),
    *("elu", "leaky_relu", "hardtanh", "expm1", "log1p", "logit", "rsqrt", "sinc", "tanh", "square", "reciprocal"),
    *("addcmul", "addcdiv", "addmm", "baddbmm", "hypot", "lerp", "linear", "logaddexp", "xlogy"),
    *("cosine_similarity", "layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax", "std", "var", "glu"),
    *("linalg_vector_norm", "scaled_dot_product_attention"),
)

MOST_TENSORS = 6

_REJECTED = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""The exceptions that an op may raise for arguments that it does not accept."""


class _Word(NamedTuple):
    """A value to try for an argument, and the text that a rule line contains for this value."""

    value: Any
    text: str


class _Draw(NamedTuple):
    """A set of random operands of a subgraph, by name, and the results that the subgraph computes from them."""

    operands: Mapping[str, Any]
    results: tuple[torch.Tensor, ...]


def known_ops(subgraph: Subgraph, values: Values, example: Example) -> Iterator[str]:
    """Yields `replace` lines that each call one existing op, which computes the subgraph's results on random inputs."""
    if len(values.tensors) > MOST_TENSORS:
        return
    draws = [_drawn(values, example, positive=positive) for positive in (False, True)]
    if not all(torch.isfinite(one).any() for draw in draws for one in draw.results):
        return
    literals = _literals(subgraph, draws[0].operands)
    alone = {node.target for node in subgraph.calls} if len(subgraph.calls) == 1 else set()
    for op in _overloads():
        if op not in alone:
            yield from _lines(op, values, draws, literals)


def _lines(
    op: torch._ops.OpOverload, values: Values, draws: Sequence[_Draw], literals: Mapping[type, Sequence[_Word]]
) -> Iterator[str]:
    """Yields the candidate lines that call a given op, for all orders of the operands, the subgraph's order first.

    Arguments that may determine shapes are varied first. The other arguments are varied only for calls whose results
    have the right shapes.
    """
    schema = op._schema.arguments
    kinds = [str(one.real_type) for one in schema]
    tensors = [at for at, kind in enumerate(kinds) if kind == "Tensor"]
    optional = [at for at, kind in enumerate(kinds) if kind == "Optional[Tensor]"]
    left = len(values.tensors) - len(tensors)
    if not 0 <= left <= len(optional):
        return
    choices = {
        at: _choices(schema[at], kinds[at], literals)
        for at in range(len(schema))
        if at not in tensors and at not in optional
    }
    if not all(choices.values()):
        return
    valued = [at for at in choices if any(word in kinds[at] for word in ("str", "float", "number"))]
    shaping = [at for at in choices if at not in valued]
    first = {at: choices[at][0] for at in valued}
    for extra in combinations(optional, left):
        for order in permutations(_Word(None, name) for name in values.tensors):
            placed = dict(zip(sorted([*tensors, *extra]), order, strict=True))
            for shapes in product(*(choices[at] for at in shaping)):
                given = {**placed, **dict(zip(shaping, shapes, strict=True))}
                if not _has_shapes(_called(op, {**given, **first}, draws[0]), draws[0].results):
                    continue
                for words in product(*(choices[at] for at in valued)):
                    every = {**given, **dict(zip(valued, words, strict=True))}
                    targets = [_targets(_called(op, every, draw), draw.results, values) for draw in draws]
                    if targets[0] and targets[0] == targets[1]:
                        yield f"{targets[0]} = {op}({', '.join(_written(op, every))})"


def _called(op: torch._ops.OpOverload, given: Mapping[int, _Word], draw: _Draw) -> tuple[Any, ...]:
    """Calls an op on one set of operands. Returns the results, or an empty tuple if the op rejects the arguments."""
    schema = op._schema.arguments
    named = {schema[at].name: draw.operands.get(word.text, word.value) for at, word in given.items()}
    absent = {one.name: None for one in schema if one.name not in named and not one.has_default_value()}
    arguments = named | absent
    try:
        check_call(op, [arguments.get(one.name) for one in schema])
        result = op(**arguments)
    except _REJECTED:
        return ()
    return tuple(result) if isinstance(result, list | tuple) else (result,)


def _has_shapes(found: Sequence[Any], expected: Sequence[torch.Tensor]) -> bool:
    shapes = [one.shape for one in found if isinstance(one, torch.Tensor)]
    return all(one.shape in shapes for one in expected)


def _targets(found: Sequence[Any], expected: Sequence[torch.Tensor], values: Values) -> str:
    """Returns the left-hand side of a line: the names of an op's results, with `_` for each unused result.

    Returns an empty string if some result of the subgraph is not among the op's results.
    """
    names = ["_"] * len(found)
    for name, result in zip(values.results, expected, strict=True):
        equal = (at for at, one in enumerate(found) if names[at] == "_" and _is_close(one, result))
        if (place := next(equal, None)) is None:
            return ""
        names[place] = name
    return ", ".join(names)


def _is_close(one: Any, other: torch.Tensor) -> bool:
    """Returns whether two results are nearly equal. The check of the rule later applies the tolerance table."""
    if not isinstance(one, torch.Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.allclose(one, other, rtol=1e-6, atol=1e-9, equal_nan=True)


def _written(op: torch._ops.OpOverload, given: Mapping[int, _Word]) -> Iterator[str]:
    """Yields the text of each argument in a rule line: first positional arguments, then keyword-only arguments."""
    schema = op._schema.arguments
    kept = [at for at, word in given.items() if not _is_default(schema[at], word)]
    last = max((at for at in kept if not schema[at].kwarg_only), default=-1)
    for at in range(last + 1):
        yield given[at].text if at in given else "None"
    yield from (f"{schema[at].name}={given[at].text}" for at in sorted(kept) if schema[at].kwarg_only)


def _is_default(argument: Any, word: _Word) -> bool:
    return bool(argument.has_default_value() and word.text == repr(argument.default_value))


def _overloads() -> Iterator[torch._ops.OpOverload]:
    for namespace, names in (("fuseconv", _FUSECONV), ("aten", _ATEN)):
        for name in names:
            packet = getattr(getattr(torch.ops, namespace), name)
            for overload in packet.overloads():
                op = getattr(packet, overload)
                if not op._schema.is_mutable and not any(one.is_out for one in op._schema.arguments):
                    yield op


def _choices(argument: Any, kind: str, literals: Mapping[type, Sequence[_Word]]) -> list[_Word]:
    """Returns the values to try for an argument: its default, literals of the subgraph, or names of activations."""
    found = [_Word(argument.default_value, repr(argument.default_value))] if argument.has_default_value() else []
    inner = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    if inner == "bool":
        found += [_Word(False, "False"), _Word(True, "True")]
    elif inner == "str" and argument.name in ("act", "last_act"):
        found += [_Word(name, repr(name)) for name in ACTIVATIONS]
    elif inner == "str" and argument.name == "approximate":
        found += [_Word(name, repr(name)) for name in ("none", "tanh")]
    elif inner in ("float", "number"):
        found += [*literals[float], *literals[int]]
    elif inner in ("int", "SymInt"):
        found += literals[int]
    elif inner in ("List[int]", "List[SymInt]"):
        found += literals[list]
    return list(dict.fromkeys(_Word(_frozen(word.value), word.text) for word in found))


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _literals(subgraph: Subgraph, draw: Mapping[str, Any]) -> dict[type, list[_Word]]:
    """Returns, by type, the numbers and integer lists in a subgraph's arguments, and the subgraph's size operands."""
    found: dict[type, list[_Word]] = {float: [], int: [], list: []}
    for name, value in draw.items():
        if isinstance(value, int):
            found[int].append(_Word(value, name))
            found[list].append(_Word([value], f"[{name}]"))
    for node in subgraph.calls:
        for value in arguments(node).values():
            if type(value) in (float, int):
                found[type(value)].append(_Word(value, repr(value)))
            if isinstance(value, list | tuple) and all(type(item) is int for item in value):
                found[list].append(_Word(list(value), repr(list(value))))
    found[list] += [_Word([word.value], f"[{word.text}]") for word in found[int]]
    return found


def _drawn(values: Values, example: Example, *, positive: bool) -> _Draw:
    """Draws random operands, runs the subgraph on them, and returns the operands with the results."""
    draw = torch.Generator().manual_seed(int(positive))
    text = parse_example(example.lines)
    sizes = example_sizes(text)

    def tensor(name: str, node: Node) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, DTYPES[dtype_in(values, node)].removeprefix("torch."))
        shape = [sizes[size] if size in sizes else int(size) for size in example.shapes[name]]
        if not dtype.is_floating_point:
            return torch.randint(0, 2, shape, generator=draw).to(dtype)
        numbers = 2 * torch.randn(shape, generator=draw, dtype=torch.float64)
        return (numbers.abs() + 0.1 if positive else numbers).to(dtype)

    tensors = {name: tensor(name, node) for name, node in values.tensors.items()}
    root = torch.nn.Module()
    for name in text.parameters:
        root.register_buffer(name, tensors[name])
    module = torch.fx.GraphModule(root, graph_of(text))
    integers = {name: sizes[size] if size in sizes else int(size) for name, size in example.sizes.items()}
    return _Draw({**tensors, **integers}, tuple(module(*(tensors[name] for name in text.inputs))))
