"""Runs ops on fake tensors with symbolic sizes without adding a guard to the program.

If an op branches on a size, torch normally evaluates the condition for the example sizes and records a guard in the
program's ShapeEnv. The functions of this module instead accept a condition only if it has the same value for all sizes
in the declared ranges, and raise an error otherwise. Sizes 0 and 1 are excluded from the ranges, as in torch.export:
a broadcast of [n] with [1] counts as a broadcast for every n.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_map_only
from torch.utils._sympy.functions import Mod, PythonMod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


class GuardError(RuntimeError):
    """An op used the value of a condition, or of a size, that is not the same for all sizes.

    Attributes:
        condition: the condition or size, as a sympy expression of symbolic sizes.
    """

    def __init__(self, condition: Any) -> None:
        super().__init__(f"a condition on sizes whose value is not the same for all sizes: {condition}")
        self.condition = condition


MOST_CONDITIONS = 3
"""The number of conditions, one below the other, that are assumed to be true and to be false."""

_FIRST: ContextVar[bool] = ContextVar("first", default=False)
"""Whether ops that fail are called again in another way."""


def _is_news(record: logging.LogRecord) -> bool:
    """A logging filter that rejects the log records of errors that this module handles itself."""
    return not (_FIRST.get() or (record.exc_info and isinstance(record.exc_info[1], GuardError)))


logging.getLogger(fake_tensor.__name__).addFilter(_is_news)


def run_for_all_sizes(mode: FakeTensorMode | None, run: Callable[[], Any]) -> Any:
    """Calls `run` on fake tensors and returns its result if the result is valid for all sizes.

    A condition may hold for some sizes only, for example if a convolution uses a different kernel from some batch size
    on. In this case, `run` is called twice: once as if the condition were true, and once as if it were false. If both
    results have the same dtypes, shapes and strides, the condition is irrelevant. Either call may depend on further
    such conditions, up to `MOST_CONDITIONS` in total.

    Args:
        mode: the fake mode of the tensors. If None, `run` is called once without any checks.
        run: a function without arguments that calls the ops.

    Raises:
        GuardError: the results differ, or the ops branch on more such conditions.
    """
    if mode is None:
        return run()
    first = _FIRST.set(True)
    try:
        return _run_both_ways(mode, run)
    except RuntimeError:
        pass
    finally:
        _FIRST.reset(first)
    # The C++ code of a composite op may read a size as an int, as linear does in torch 2.11, and baddbmm in torch 2.13.
    with enable_python_dispatcher():
        return _run_both_ways(mode, run)


def _run_both_ways(
    mode: FakeTensorMode, run: Callable[[], Any], given: Mapping[Any, bool] = MappingProxyType({})
) -> Any:
    try:
        with all_sizes(mode, given):
            return run()
    except GuardError as problem:
        if not (problem.condition.is_Relational or problem.condition.is_Boolean) or len(given) == MOST_CONDITIONS:
            raise  # a size that is used as an int has more than two possible values
        undecided = problem
    try:
        results = [_run_both_ways(mode, run, {**given, undecided.condition: answer}) for answer in (True, False)]
    except (AssertionError, IndexError) as error:  # no size gives this answer beside those to the other conditions
        raise undecided from error
    if key_of(results[0]) != key_of(results[1]):
        raise undecided
    return results[0]


def likeness(mode: FakeTensorMode | None, value: Any) -> Any:
    """Returns `value` with each tensor replaced by a new fake tensor of the same dtype, device, shape and strides.

    The new tensors share no storage with any other tensor.
    """

    def one(tensor: torch.Tensor) -> Any:
        if mode is not None and mode.shape_env is None:
            # This equals the result of from_tensor, but skips the search for views, which takes almost a millisecond.
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
            return FakeTensor(mode, meta, tensor.device)
        make = partial(torch.empty_strided, dtype=tensor.dtype, device=tensor.device)
        return run_for_all_sizes(mode, lambda: make(tensor.shape, tensor.stride()))

    return tree_map_only(torch.Tensor, one, value)


def key_of(value: Any) -> Any:
    """Returns a hashable key, which is equal for results with the same dtypes, devices, layouts, shapes and strides.

    A symbolic value is represented by its sympy expression, and any other value by its type and the value itself.
    """
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, value.layout, key_of(tuple(value.shape)), key_of(tuple(value.stride())))
    if isinstance(value, list | tuple):
        return tuple(key_of(item) for item in value)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value.node.expr
    return (type(value), value)


@contextmanager
def all_sizes(mode: FakeTensorMode, given: Mapping[Any, bool] = MappingProxyType({})) -> Iterator[None]:
    """Runs the block in a fake mode, without gradients, and raises an error where an op would need a guard.

    Args:
        mode: the fake mode, whose ShapeEnv contains the declared ranges of the sizes.
        given: maps conditions on sizes to their assumed values.

    Raises:
        GuardError: an op in the block branches on a condition that is neither in `given` nor the same for all sizes.
    """
    environment = mode.shape_env
    if environment is None:
        with mode, torch.no_grad():
            yield
        return

    def evaluate(expression: Any, *_: Any, fallback_value: bool | None = None, **__: Any) -> Any:
        if expression in given:
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
    # Overrides methods of this ShapeEnv, because SymInt calls them directly and torch offers no hook.
    vars(environment).update(answers)
    try:
        # torch's own cache of results does not know `given`, and an entry costs as much as the op.
        with fake_tensor.disable_fake_tensor_cache(mode), mode, torch.no_grad():
            yield
    finally:
        for name in answers:
            vars(environment).pop(name, None)


def _decided(environment: ShapeEnv, expression: Any) -> Any:
    """Returns the value of an expression if it is the same for all sizes in the declared ranges, else None."""
    if not isinstance(expression, sympy.Basic):
        return expression
    if (known := environment._maybe_evaluate_static(expression)) is not None:
        return known
    ranges = {symbol: _general(environment, symbol) for symbol in expression.free_symbols}
    expression = expression.replace(_is_of_a_multiple, lambda *_: sympy.S.Zero)
    expression = expression.replace(partial(_is_below_its_divisor, ranges), lambda found: found.args[0])
    bounds = bound_sympy(expression, ranges)
    if bounds.is_singleton():
        return bounds.lower
    if isinstance(expression, sympy.Eq | sympy.Ne):
        left, right = expression.args
        if _is_below(left, right, ranges) or _is_below(right, left, ranges):
            return sympy.true if isinstance(expression, sympy.Ne) else sympy.false
    return None


def _is_below(smaller: Any, larger: Any, ranges: dict[Any, ValueRanges[Any]]) -> bool:
    """Returns whether one size is less than another at all sizes, as `b` is less than `a * b` for sizes from 2.

    The ranges of `b` and `a * b` overlap, but the range of their factored difference `b * (a - 1)` does not contain 0.
    """
    return bool(bound_sympy(sympy.factor(larger - smaller), ranges).lower > 0)


def _is_below_its_divisor(ranges: dict[Any, ValueRanges[Any]], expression: Any) -> bool:
    """Returns whether an expression is a remainder that equals its dividend, such as b mod (a * b)."""
    if not isinstance(expression, Mod | PythonMod):
        return False
    dividend, divisor = expression.args
    return bool(bound_sympy(dividend, ranges).lower >= 0) and _is_below(dividend, divisor, ranges)


def _is_of_a_multiple(expression: Any) -> bool:
    """Returns whether an expression is a remainder that is always 0, such as (a * b - b) mod b.

    torch does not simplify such a remainder to 0 if the dividend is a product of sizes.
    """
    if not isinstance(expression, Mod | PythonMod):
        return False
    quotient = sympy.cancel(expression.args[0] / expression.args[1])
    return bool(quotient.is_integer and sympy.denom(quotient) == 1)


def _general(environment: ShapeEnv, symbol: Any) -> ValueRanges[Any]:
    """Returns the declared range of a size without 0 and 1, or the range itself if it contains only 0 and 1."""
    known = environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
    return ValueRanges(max(known.lower, 2), known.upper) if known.upper >= 2 else known
