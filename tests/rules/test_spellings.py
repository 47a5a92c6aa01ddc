"""Every spelling of a function becomes the same ops: a table of small modules and the ops of their fused graphs."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import programs
from support.spellings import (
    CASTS,
    CAUSAL,
    CHANNEL_NORMS,
    CHANNELS,
    GROUP_NORM_SILU,
    OTHER_ACTS,
    QUICK_GELU,
    RELU,
    RELU_SQUARED,
    RESPONSE_NORM,
    SDPA,
    SUM_SQUARED,
    TABLE,
    TOGETHER,
    draw,
    heads,
    images,
    vectors,
)
from torch import Tensor
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings

LEAKY = {name: function for name, (function, op) in OTHER_ACTS.items() if op == "leaky_relu"}
FREE = (
    "view",
    "reshape",
    "transpose",
    "t",
    "permute",
    "unsqueeze",
    "expand",
    "flatten",
    "squeeze",
    "logical_not",
    "masked_fill",
    "new_zeros",
    "eq",
)
"""Ops that are views, or on a mask only: what is left beside the op that is looked for."""


class Constants(torch.nn.Module):
    """A function of (module, inputs), with every constant that a spelling may read."""

    g: Tensor
    e: Tensor

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.read: set[str] = set()
        weights = {"w": (6, 8), "v": (8, 6), "b": (6,), "g": (8,), "e": (8,), "added": (5, 5)}
        weights |= {"scales": (1, 8, 1, 1), "shifts": (8, 1, 1), "w2": (4, 8), "w3": (2, 8), "b2": (4,), "b3": (2,)}
        weights |= {"thirds": (3,), "others": (1, 1, 1, 3)}
        for seed, (name, shape) in enumerate(weights.items()):
            self.register_parameter(name, torch.nn.Parameter(draw(shape, dtype, seed), requires_grad=False))
        self.norm = torch.nn.GroupNorm(2, 8, dtype=dtype).requires_grad_(False)
        self.norm.weight.copy_(self.g)
        self.norm.bias.copy_(self.e)
        for name, value in {"zero": 0.0, "one": 1.0, "two": 2.0}.items():
            self.register_buffer(name, torch.tensor(value, dtype=dtype))
        self.register_buffer("a_half", torch.tensor(0.5, dtype=dtype))
        self.register_buffer("low", torch.tensor(-math.inf, dtype=dtype))
        self.register_buffer("hide", torch.eye(5, dtype=torch.bool))
        self.register_buffer("keep", ~torch.eye(5, dtype=torch.bool))
        self.register_buffer("triangle", torch.ones(5, 5).tril())

    def forward(self, *inputs: Tensor) -> tuple[Any]:
        return (self.function(self, *inputs),)

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getattr__(name)

    def without_the_others(self, inputs: tuple[Tensor, ...]) -> "Constants":
        """Leaves out the constants that the function does not read: a capture takes a millisecond for each."""
        self.read.clear()
        with torch.no_grad():
            self.function(self, *(tensor.clone() for tensor in inputs))
        for name in {*self._parameters, *self._buffers, *self._modules} - self.read:
            delattr(self, name)
        return self


def fused(
    function: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    dtype: torch.dtype,
    rules: Sequence[Rule],
    device: str = "cpu",
) -> tuple[Program, Program]:
    module = Constants(function, dtype).without_the_others(inputs)
    n = torch.export.Dim("n", min=1, max=64)
    program = programs.program(module, inputs, (tuple({0: n} for _ in inputs),))
    return program, rewrite(program, plan(program, rules, device=device, targets=()))


HARDSWISH = {"aten.hardswish.default": 1}
"""The rule takes no f64."""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("function", "inputs", "ops"), TABLE)
def test_a_spelling_ends_as_one_op(
    function: Callable[..., Any],
    inputs: Callable[[torch.dtype], tuple[Tensor, ...]],
    ops: dict[str, int],
    dtype: torch.dtype,
    canonical_rules: tuple[Rule, ...],
) -> None:
    dtype = torch.float32 if ops == HARDSWISH else dtype
    program, result = fused(function, inputs(dtype), dtype, canonical_rules)
    called = Counter(op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function")
    left = {op: count for op, count in called.items() if op.split(".")[1] not in FREE}
    assert left == ops
    expected, actual = programs.run(program), programs.run(result)
    torch.testing.assert_close(actual, expected)
    if dtype == torch.float64:
        torch.testing.assert_close(actual, run_in_float64(program, program.examples))


@pytest.mark.parametrize("weight", CHANNELS)
@pytest.mark.parametrize("name", CHANNEL_NORMS)
def test_a_norm_of_the_channels_of_images_is_one_of_rows(
    name: str, weight: str, canonical_rules: tuple[Rule, ...]
) -> None:
    (norm, op), affine = CHANNEL_NORMS[name], CHANNELS[weight]
    function = lambda m, x: affine(m, norm(m, x))  # noqa: E731
    program, result = fused(function, images(torch.float64), torch.float64, canonical_rules, "cuda")
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    bias = ["aten.add.Tensor"] if op == "rms_norm" and weight in ("None", "view") else []
    permute = "aten.permute.default"
    assert called == [permute, f"aten.{op}.default", *bias, permute, "aten.contiguous.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize("name", CHANNEL_NORMS)
def test_a_norm_of_the_channels_of_images_stays_on_a_cpu(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    norm, op = CHANNEL_NORMS[name]
    _, result = fused(norm, images(torch.float64), torch.float64, canonical_rules)
    called = {op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"}
    assert not called & {f"aten.{op}.default", "aten.permute.default"}


@pytest.mark.parametrize("name", LEAKY)
def test_a_leaky_relu_keeps_what_is_no_number(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    program, result = fused(LEAKY[name], vectors(torch.float32), torch.float32, canonical_rules)
    assert [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"] == [
        "aten.leaky_relu.default"
    ]
    inputs = (torch.tensor([[math.nan, -math.inf, math.inf, -1.0, 0.0, 1.0, -1e-42, 3e38]]).expand(2, 8),)
    torch.testing.assert_close(programs.run(result, inputs), programs.run(program, inputs), equal_nan=True)


def test_a_norm_with_a_floor_is_no_rms_norm(default_rules: tuple[Rule, ...]) -> None:
    """F.normalize divides by at least 1e-12: a row of zeros stays zero, and a row of norm 1e-12 has no other eps."""
    program, result = fused(
        lambda m, x: F.normalize(x, dim=-1) * 8**0.5 * m.g, vectors(torch.float64), torch.float64, default_rules
    )
    called = {op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"}
    assert "aten.clamp_min.default" in called
    inputs = (torch.tensor([0.0, 3e-13, 1e-12, 1.0], dtype=torch.float64)[:, None].expand(4, 8),)
    torch.testing.assert_close(programs.run(result, inputs), programs.run(program, inputs))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", RESPONSE_NORM)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_response_norm_reads_its_input_twice(name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]) -> None:
    program, result = fused(RESPONSE_NORM[name], images(dtype), dtype, default_rules)
    (name,) = result.exported.graph_signature.user_inputs
    (x,) = (node for node in result.exported.graph.nodes if node.name == name)
    assert [op_name(node.target) for node in x.users] == ["aten.linalg_vector_norm.default", "fuseconv.mul_add.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize("name", TOGETHER)
def test_linears_that_are_concatenated_are_one(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    program, result = fused(TOGETHER[name], vectors(torch.float64), torch.float64, canonical_rules)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", SUM_SQUARED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sum_of_squares_is_one_op(name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]) -> None:
    program, result = fused(SUM_SQUARED[name], vectors(dtype), dtype, default_rules)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called == ["fuseconv.sum_squared.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


def test_a_choice_that_loses_nan_is_no_relu(default_rules: tuple[Rule, ...]) -> None:
    """where(h > 0, h, 0) is 0 where h is not a number, and relu is not."""
    inputs = (torch.tensor([[math.nan, -1.0, 2.0]], dtype=torch.float64).expand(2, 3).clone(),)
    program, result = fused(lambda m, h: torch.where(h > 0, h, 0), inputs, torch.float64, default_rules)
    assert programs.run(result)[0].tolist() == programs.run(program)[0].tolist() == [[0.0, 0.0, 2.0]] * 2


@pytest.mark.parametrize("name", RELU)
def test_a_relu_keeps_what_is_no_number(name: str, default_rules: tuple[Rule, ...]) -> None:
    program, result = fused(RELU[name], vectors(torch.float32), torch.float32, default_rules)
    inputs = (torch.tensor([[math.nan, -math.inf, math.inf, -1.0, 0.0, 1.0, -1e-42, 3e38]]).expand(2, 8),)
    torch.testing.assert_close(programs.run(result, inputs), programs.run(program, inputs), equal_nan=True)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", GROUP_NORM_SILU)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_group_norm_and_silu_are_one_op(name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]) -> None:
    program, result = fused(GROUP_NORM_SILU[name], images(dtype), dtype, default_rules)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called == ["fuseconv.group_norm_act.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", QUICK_GELU)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_quick_gelu_between_linears_is_silu(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    act, inputs = QUICK_GELU[name], (draw((3, 8), dtype, 1),)
    function = lambda m, x: F.linear(act(F.linear(x, m.w, m.b)), m.v, m.e)  # noqa: E731
    program, result = fused(function, inputs, dtype, canonical_rules)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called == ["aten.linear.default", "aten.silu.default", "aten.linear.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize("name", RELU_SQUARED)
@pytest.mark.parametrize("residual", [False, True])
def test_a_squared_relu_is_an_activation(name: str, residual: bool, default_rules: tuple[Rule, ...]) -> None:
    act, inputs = RELU_SQUARED[name], (draw((3, 6), torch.float32, 1),)
    function = lambda m, x: act(F.linear(x, m.v, m.e)) + (F.linear(x, m.v) if residual else 0)  # noqa: E731
    program, result = fused(function, inputs, torch.float32, default_rules)
    calls = [node for node in result.exported.graph.nodes if op_name(node.target) == "fuseconv.linear_act.default"]
    assert "relu_squared" in {call.args[4] for call in calls}
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_is_a_flag(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    _, result = fused(CAUSAL[name], heads(torch.float32), torch.float32, canonical_rules)
    (node,) = (node for node in result.exported.graph.nodes if op_name(node.target) == SDPA)
    assert node.args[3] is None
    assert node.args[5] is True


def test_a_permutation_is_followed_not_assumed(canonical_rules: tuple[Rule, ...]) -> None:
    """Keys of one batch and as many heads as positions, permuted: every shape fits, and it is another product."""
    inputs = tuple(draw((1, 4, 4, 8), torch.float64, seed) for seed in (1, 2, 3))
    module = Constants(lambda _, q, k, v: (q @ k.permute(0, 2, 3, 1) / 2).softmax(-1) @ v, torch.float64)
    program = programs.program(module, inputs)
    result = rewrite(program, plan(program, canonical_rules, device="cpu", targets=()))
    torch.testing.assert_close(programs.run(result), programs.run(program))
    wrong = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], scale=0.5)
    assert (programs.run(program)[0] - wrong).abs().max() > 0.1


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_in_f32_is_a_norm(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    program, result = fused(CASTS[name], vectors(dtype), dtype, canonical_rules)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called == ["aten.rms_norm.default"]
    (actual,), (expected,) = programs.run(result), programs.run(program)
    (fp64,) = run_in_float64(program, program.examples)
    assert compare(actual, expected, fp64).ok
