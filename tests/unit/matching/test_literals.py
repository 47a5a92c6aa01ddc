"""Literals that differ from a rule's by a few digits: matched if the error of the result does not grow."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor

from fuseconv.matching.steps import Plan
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule

EVERYWHERE: dict[str, Any] = {"device": "cpu", "targets": ()}
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16


ROOT = math.sqrt(2)
ROOT_OF_TWO_OVER_PI = math.sqrt(2 / math.pi)


def gelu_tanh(root: float = ROOT_OF_TWO_OVER_PI, cube: float = 0.044715) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * x * (1 + torch.tanh(root * (x + cube * x * x * x)))


def gelu_erf(root: float = ROOT) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * x * (1 + torch.erf(x / root))


def hardswish(sixth: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * torch.clamp(x + 3, 0, 6) * sixth


TAKEN = {
    # name: (function, the rule, the dtypes in which the number does)
    "exact tanh": (gelu_tanh(), "gelu-tanh", {F64, F32, F16, BF16}),
    "ten digits": (gelu_tanh(0.7978845608), "gelu-tanh", {F32, F16, BF16}),
    "eight digits": (gelu_tanh(0.79788456), "gelu-tanh", {F32, F16, BF16}),
    "five digits": (gelu_tanh(0.79788), "gelu-tanh", {BF16, F16}),
    "four digits": (gelu_tanh(0.7979), "gelu-tanh", {BF16, F16}),
    "a short cube": (gelu_tanh(cube=0.0447), "gelu-tanh", {BF16, F16}),
    "exact erf": (gelu_erf(), "gelu-erf", {F64, F32, F16, BF16}),
    "eight digits of a root": (gelu_erf(1.41421356), "gelu-erf", {F32, F16, BF16}),
    "five digits of a root": (gelu_erf(1.4142), "gelu-erf", {BF16, F16}),
    "a sixth": (hardswish(1 / 6), "hardswish", {F32, F16, BF16}),
    "four digits of a sixth": (hardswish(0.1667), "hardswish", {BF16, F16}),
    "another number": (hardswish(0.167), "hardswish", set()),
}


CASES = [
    pytest.param(name, dtype, id=f"{name}, {dtype}")
    for name, (_, rule, _) in TAKEN.items()
    for dtype in (F64, F32, F16, BF16)
    if (rule, dtype) != ("hardswish", F64)  # the rule takes no f64
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_short_number_is_taken_where_the_result_stays_as_near_to_float64(
    name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]
) -> None:
    function, rule, does = TAKEN[name]
    x = torch.randn(8, 32, generator=torch.Generator().manual_seed(3)).to(dtype)
    program = programs.capture(programs.Function(lambda _, x: function(x)), x)
    found = checked_plan(program, default_rules, **EVERYWHERE)
    assert (rule in found.counts()) == (dtype in does), found.misses
    assert found.rejected == ()
    if dtype not in does and name != "another number":
        (miss,) = [miss for miss in found.misses if miss.rule == rule and "shows in the result" in miss.reason]
        assert miss.refused
        assert "expected the literal" in miss.reason
        assert "rmse against float64" in miss.reason
    assert Plan.from_json(found.to_json()) == found
