"""Runs ops on fake tensors with symbolic sizes without adding a guard to the program.

An op that branches on a size queries the program's ShapeEnv, which would evaluate the condition for the example sizes
and record a guard. Here a condition is evaluated only if it has the same value for all sizes in the declared ranges.
Sizes 0 and 1 are excluded, as in torch.export: a broadcast of [n] with [1] is a broadcast for every n. Any other
condition raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only
from torch.utils._sympy.functions import Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


class GuardError(RuntimeError):
    """An op branched on a condition that does not have the same value for all sizes."""

    def __init__(self, condition: Any) -> None:
        super().__init__(f"a condition on sizes, {condition}")
        self.condition = condition


def run_for_all_sizes(mode: FakeTensorMode | None, run: Callable[[], Any]) -> Any:
    """Runs ops on fake tensors and returns results that are valid for all sizes.

    A condition that holds for some sizes only, such as the batch size from which a convolution uses a different kernel,
    is assumed to be true and then false. If the dtypes, shapes and strides are the same, the condition is ignored.

    Raises:
        GuardError: the results depend on a condition, or there is a second such condition.
    """
    if mode is None:
        return run()
    try:
        return _run_both_ways(mode, run)
    except RuntimeError:
        # The C++ code of a composite op may read a size as a number, as linear does in torch 2.11.
        with enable_python_dispatcher():
            return _run_both_ways(mode, run)


def _run_both_ways(mode: FakeTensorMode, run: Callable[[], Any]) -> Any:
    try:
        with all_sizes(mode):
            return run()
    except GuardError as problem:
        if not (problem.condition.is_Relational or problem.condition.is_Boolean):
            raise  # a size is used as a number, which has more than two possible values
        undecided = problem
    results = []
    for answer in (True, False):
        with all_sizes(mode, {undecided.condition: answer}):
            results.append(run())
    if key_of(results[0]) != key_of(results[1]):
        raise undecided
    return results[0]


def likeness(mode: FakeTensorMode | None, value: Any) -> Any:
    """Returns new fake tensors with the same dtypes, devices, shapes and strides, which alias no other tensor."""

    def one(tensor: torch.Tensor) -> Any:
        if mode is not None and mode.shape_env is None:
            # This equals the result of from_tensor, but skips the search for views, which takes almost a millisecond.
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            return FakeTensor(mode, meta, tensor.device)
        make = partial(torch.empty_strided, dtype=tensor.dtype, device=tensor.device)
        return run_for_all_sizes(mode, lambda: make(tensor.shape, tensor.stride()))

    return tree_map_only(torch.Tensor, one, value)


def key_of(value: Any) -> Any:
    """Returns a hashable key of everything in a value on which an op's result depends, with sizes as expressions."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, value.layout, key_of(tuple(value.shape)), key_of(tuple(value.stride())))
    if isinstance(value, list | tuple):
        return tuple(key_of(item) for item in value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    return (type(value), value)


@contextmanager
def all_sizes(mode: FakeTensorMode, given: Mapping[Any, bool] | None = None) -> Iterator[None]:
    """Runs the block in a fake mode whose ShapeEnv never uses the example sizes to evaluate a condition.

    Args:
        mode: the fake mode.
        given: conditions on sizes, each with the value that it is assumed to have.

    Raises:
        GuardError: raised by the ops in the block if they need a guard.
    """
    environment = mode.shape_env
    if environment is None:
        with mode, torch.no_grad():
            yield
        return

    def evaluate(expression: Any, *_: Any, fallback_value: bool | None = None, **__: Any) -> Any:
        if given is not None and expression in given:
            return sympy.true if given[expression] else sympy.false
        decided = _decided(environment, expression)
        if decided is None and fallback_value is not None:
            return sympy.true if fallback_value else sympy.false
        if decided is None:
            raise GuardError(expression)
        return decided

    def check(expression: Any, *_: Any, **__: Any) -> bool:
        return bool(evaluate(expression))

    answers = {"evaluate_expr": evaluate, "guard_or_defer_runtime_assert": check}
    # The functions override methods of the instance, because SymInt has no other way to reach them.
    vars(environment).update(answers)
    try:
        with mode, torch.no_grad():
            yield
    finally:
        for name in answers:
            vars(environment).pop(name, None)


def _decided(environment: ShapeEnv, expression: Any) -> Any:
    """Returns the value of an expression if it is the same for all sizes, else None."""
    if not isinstance(expression, sympy.Basic):
        return expression
    if (known := environment._maybe_evaluate_static(expression)) is not None:
        return known
    expression = expression.replace(_is_of_a_multiple, lambda *_: sympy.S.Zero)
    ranges = {symbol: _general(environment, symbol) for symbol in expression.free_symbols}
    bounds = bound_sympy(expression, ranges)
    return bounds.lower if bounds.is_singleton() else None


def _is_of_a_multiple(expression: Any) -> bool:
    """Returns whether an expression is a remainder that is always 0, such as (a * b - b) mod b.

    torch does not recognize this if a size is a product.
    """
    if not isinstance(expression, Mod | PythonMod):
        return False
    quotient = sympy.cancel(expression.args[0] / expression.args[1])
    return bool(quotient.is_integer and sympy.denom(quotient) == 1)


def _general(environment: ShapeEnv, symbol: Any) -> ValueRanges[Any]:
    known = environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
    return ValueRanges(max(known.lower, 2), known.upper) if known.upper >= 2 else known
