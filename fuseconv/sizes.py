"""Running ops on fake tensors of symbolic sizes without adding a guard to the program.

An op that branches on a size asks the program's ShapeEnv, which would answer from the example and record a guard. Here
it is answered only where the answer is the same for every size in the declared ranges, sizes 0 and 1 set aside, as
torch.export itself sets them aside: a broadcast of [n] with [1] is a broadcast of any n. What is left is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy


class GuardError(RuntimeError):
    """An op asked about sizes what is not the same for all of them."""


@contextmanager
def all_sizes(mode: FakeTensorMode) -> Iterator[None]:
    """Runs the block in a fake mode whose ShapeEnv decides nothing by example.

    Raises:
        GuardError: out of the block's ops, where one would need a guard.
    """
    environment = mode.shape_env
    if environment is None:
        with mode, torch.no_grad():
            yield
        return

    def evaluate(expression: Any, *_: Any, fallback_value: bool | None = None, **__: Any) -> Any:
        decided = _decided(environment, expression)
        if decided is None and fallback_value is not None:
            return sympy.true if fallback_value else sympy.false
        if decided is None:
            raise GuardError(f"a condition on sizes, {expression}")
        return decided

    def check(expression: Any, *_: Any, **__: Any) -> bool:
        return bool(evaluate(expression))

    answers = {"evaluate_expr": evaluate, "guard_or_defer_runtime_assert": check}
    # On the instance: it answers to SymInt, which knows no other place to ask.
    vars(environment).update(answers)
    try:
        with mode, torch.no_grad():
            yield
    finally:
        for name in answers:
            vars(environment).pop(name, None)


def _decided(environment: ShapeEnv, expression: Any) -> Any:
    """Returns the value of an expression when all sizes agree on it, else None."""
    if not isinstance(expression, sympy.Basic):
        return expression
    if (known := environment._maybe_evaluate_static(expression)) is not None:
        return known
    ranges = {symbol: _general(environment, symbol) for symbol in expression.free_symbols}
    bounds = bound_sympy(expression, ranges)
    return bounds.lower if bounds.is_singleton() else None


def _general(environment: ShapeEnv, symbol: Any) -> ValueRanges[Any]:
    known = environment.var_to_range.get(symbol, ValueRanges(0, int_oo))
    return ValueRanges(max(known.lower, 2), known.upper) if known.upper >= 2 else known
