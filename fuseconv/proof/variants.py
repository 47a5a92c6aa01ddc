"""Variants of a program written as text: programs with other dtypes, sizes, ranks, arguments and operands.

An example of a rule stands for all programs that the rule matches. Each variant changes one property of the example. If
the rule applies to the variant, it must be correct there too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from fuseconv.contract.spec import TensorSpec
from fuseconv.graph.nodes import find_op
from fuseconv.proof.edges import BEYOND_A_BYTE
from fuseconv.proof.example import Text
from fuseconv.rulebook.rule_text import Call, Items, Literal, Name, Term

_FLOATING = ("f64", "f32", "f16", "bf16")
_OTHER_KINDS = {"bool": ("i64", "f64"), "i64": ("f64", "bool", "i32", "u8"), "i32": ("i64",)}
_WORDS = ("MemoryFormat", "ScalarType", "Layout", "Device", "Generator")
"""The argument types that are integers in a schema but for which an arbitrary integer crashes the op."""

MOST = 1 << 17
"""The maximum number of elements of a tensor when a size is large."""

EQUAL = 4
"""The value to which all sizes are set, to find rules that distinguish axes only by their sizes."""


def variants(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields the variants of a program, each as (a description of the change, the changed program).

    Some variants are invalid programs. The sizes of all variants are static: rule conditions are proved more often for
    static sizes than for symbolic sizes, so the rule applies to more variants.
    """
    numbers = _numbered(text)
    yield from chain(
        _dtypes(numbers),
        _sizes(numbers),
        _ranks(numbers),
        _arguments(numbers),
        _orders(numbers),
        _one_operand(numbers),
    )


def in_dtypes(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields, for each other floating-point dtype, the program with all floating-point tensors in this dtype."""
    yield from _floating_as(_numbered(text))


def _numbered(text: Text) -> Text:
    sizes = _Sizes()
    return _with(text, lambda spec: replace(spec, shape=spec.sizes(sizes)))


class _Sizes(dict[str, int]):
    """Maps symbolic sizes to 5, 6, 7, ... in the order of their first use."""

    def __missing__(self, name: str) -> int:
        return self.setdefault(name, 5 + len(self))


def _tensors(text: Text) -> Mapping[str, TensorSpec]:
    return {**text.inputs, **text.parameters}


def _with(text: Text, change: Callable[[TensorSpec], TensorSpec]) -> Text:
    return replace(
        text,
        inputs={name: change(spec) for name, spec in text.inputs.items()},
        parameters={name: change(spec) for name, spec in text.parameters.items()},
    )


def _dtypes(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs in which all floating-point tensors, or one tensor alone, have another dtype."""
    yield from _floating_as(text, "i64")
    tensors = _tensors(text)
    for name, spec in tensors.items():
        others = _OTHER_KINDS.get(
            spec.dtype, () if len(tensors) == 1 else ("f32",) if spec.dtype == "f64" else ("f64",)
        )
        for dtype in others:
            yield f"{name} as {dtype}", _changed(text, name, replace(spec, dtype=dtype))


def _floating_as(text: Text, *others: str) -> Iterator[tuple[str, Text]]:
    floating = {spec.dtype for spec in _tensors(text).values() if spec.dtype in _FLOATING}
    for dtype in (*_FLOATING, *others):
        if floating and floating != {dtype}:
            yield (
                f"floating tensors as {dtype}",
                _with(text, lambda spec, to=dtype: replace(spec, dtype=to) if spec.dtype in _FLOATING else spec),  # type: ignore[misc]  # the default binds the loop's value
            )


def _changed(text: Text, name: str, new: TensorSpec) -> Text:
    return _with(text, lambda spec: new if spec.name == name else spec)


def _sizes(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs with one size changed everywhere, with all sizes equal, or with one axis that broadcasts."""
    tensors = _tensors(text)
    static = sorted({size for spec in tensors.values() for size in spec.shape if isinstance(size, int)} - {1})
    for size in static:
        for other in (0, 1, size + 1 if size % 2 else size * 3, BEYOND_A_BYTE):
            resized = _resized(text, {size: other})
            if other < BEYOND_A_BYTE or all(math.prod(spec.sizes({})) <= MOST for spec in _tensors(resized).values()):
                yield f"sizes {size} as {other}", resized
    equal = _resized(text, dict.fromkeys(static, EQUAL))
    yield f"all sizes {EQUAL}", equal
    inputs = {name: replace(spec, shape=(EQUAL, *spec.shape)) for name, spec in equal.inputs.items()}
    yield f"all sizes {EQUAL}, inputs with an axis more", replace(equal, inputs=inputs)
    for name, spec in tensors.items():
        for axis, length in enumerate(spec.shape):
            if length != 1:
                shape = (*spec.shape[:axis], 1, *spec.shape[axis + 1 :])
                yield f"{name} of size 1 along axis {axis}", _changed(text, name, replace(spec, shape=shape))


def _resized(text: Text, sizes: Mapping[int, int]) -> Text:
    """Replaces sizes of a program, both in tensor shapes and in the list arguments of ops."""

    def in_lists(term: Term, *, inside: bool = False) -> Term:
        if isinstance(term, Items):
            return Items(tuple(in_lists(item, inside=True) for item in term.items))
        if inside and isinstance(term, Literal) and type(term.value) is int:
            return Literal(sizes.get(term.value, term.value))
        return term

    def in_shape(spec: TensorSpec) -> TensorSpec:
        return replace(
            spec, shape=tuple(sizes.get(size, size) if isinstance(size, int) else size for size in spec.shape)
        )

    return replace(_with(text, in_shape), lines=[(*line[:2], _mapped(line[2], in_lists)) for line in text.lines])


def _mapped(call: Call, change: Callable[[Term], Term]) -> Call:
    kwargs = tuple((name, change(term)) for name, term in call.kwargs)
    return replace(call, args=tuple(map(change, call.args)), kwargs=kwargs)


def _ranks(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs in which the first axis of one tensor, or of all inputs, is removed, or a new one is added."""
    for name, spec in _tensors(text).items():
        if spec.shape:
            yield f"{name} without its first axis", _changed(text, name, replace(spec, shape=spec.shape[1:]))
        for size in (1, 2):
            yield f"{name} with a first axis of {size}", _changed(text, name, replace(spec, shape=(size, *spec.shape)))
    if len(text.inputs) > 1 or text.parameters:
        less = {name: replace(spec, shape=spec.shape[1:]) for name, spec in text.inputs.items()}
        more = {name: replace(spec, shape=(2, *spec.shape)) for name, spec in text.inputs.items()}
        yield "inputs without their first axis", replace(text, inputs=less)
        yield "inputs with a first axis of 2", replace(text, inputs=more)


def _arguments(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs in which one argument that is not a tensor has another value, or is added if omitted."""
    for at, (targets, unpacks, call) in enumerate(text.lines):
        op = find_op(call.op)
        for place, argument in enumerate(op._schema.arguments if op is not None else ()):
            given = dict(call.kwargs).get(argument.name)
            if place < len(call.args) and not argument.kwarg_only:
                given = call.args[place]
            old = argument.default_value if given is None else given.value if isinstance(given, Literal) else None
            for value in _others(old, str(argument.real_type)):
                if given is None or place >= len(call.args):
                    kwargs = {**dict(call.kwargs), argument.name: Literal(value)}
                    new = replace(call, kwargs=tuple(kwargs.items()))
                else:
                    new = replace(call, args=(*call.args[:place], Literal(value), *call.args[place + 1 :]))
                lines = [*text.lines[:at], (targets, unpacks, new), *text.lines[at + 1 :]]
                yield f"{argument.name}={value!r} in {call.op}", replace(text, lines=lines)


def _others(value: Any, kind: str) -> tuple[bool | int | float | str, ...]:
    """Returns other values for an argument: up to two numbers, the negated bool, or gelu's other `approximate`."""
    if ("Tensor" in kind and not isinstance(value, int | float)) or kind.removeprefix("Optional[").startswith(_WORDS):
        return ()
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, int):
        return (value + 1, value - 1) if "int" in kind else (value + 2, -1.5)
    if isinstance(value, float):
        return (value * 2.5 + 0.25, value / 16) if value == value and abs(value) != float("inf") else (0.5,)
    return {"none": ("tanh",), "tanh": ("none",)}.get(value, ()) if isinstance(value, str) else ()


def _orders(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs in which the first two tensors of one op are swapped."""
    for at, (targets, unpacks, call) in enumerate(text.lines):
        if len(call.args) > 1 and isinstance(call.args[0], Name) and isinstance(call.args[1], Name):
            swapped = replace(call, args=(call.args[1], call.args[0], *call.args[2:]))
            lines = [*text.lines[:at], (targets, unpacks, swapped), *text.lines[at + 1 :]]
            yield f"operands of {call.op} swapped", replace(text, lines=lines)


def _one_operand(text: Text) -> Iterator[tuple[str, Text]]:
    """Yields programs in which one input replaces another input of the same dtype and shape."""
    tensors = list(text.inputs.values())
    for at, one in enumerate(tensors):
        for other in tensors[at + 1 :]:
            if (one.dtype, one.shape) == (other.dtype, other.shape):
                lines = [(*line[:2], _mapped(line[2], _renamed(other.name, one.name))) for line in text.lines]
                if other.name not in text.returned:
                    yield f"{one.name} in place of {other.name}", replace(text, lines=lines)


def _renamed(old: str, new: str) -> Callable[[Term], Term]:
    return lambda term: Name(new) if term == Name(old) else term
