"""Rewrites of a whole program: weights concatenated once, constants folded, duplicates merged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from support import programs
from support.programs import Function
from torch import Tensor
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule


def weights(*shapes: tuple[int, ...]) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {f"w{at}": torch.randn(shape, generator=draw, dtype=torch.float64) for at, shape in enumerate(shapes)}


def fused(
    function: Callable[..., Any], parameters: Mapping[str, Tensor], rules: Sequence[Rule], *shape: int
) -> Program:
    x = torch.randn(shape or (2, 5, 8), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    program = programs.capture(Function(function, parameters), x)
    found = plan(program, rules, device="cpu", targets=())
    result = rewrite(program, Plan.from_json(found.to_json()))
    torch.testing.assert_close(programs.run(result), programs.run(program))
    return result


def called(program: Program) -> list[str]:
    return [op_name(node.target) for node in program.exported.graph.nodes if node.op == "call_function"]


def held(program: Program) -> list[Any]:
    """Every tensor that a program carries."""
    return [*program.exported.state_dict.values(), *program.exported.constants.values()]


def count(program: Program, op: str) -> int:
    return called(program).count(f"aten.{op}")


def heads(x: Tensor, width: int = 4) -> Tensor:
    return x.view(-1, 5, x.shape[-1] // width, width).transpose(1, 2)


def attend(m: Any, x: Tensor, a: str = "w0", b: str = "w1", c: str = "w2") -> Tensor:
    q, k, v = (heads(F.linear(x, getattr(m, name))) for name in (a, b, c))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 5, 8)


def test_three_products_are_one_and_the_originals_are_gone(canonical_rules: tuple[Rule, ...]) -> None:
    program = fused(lambda m, x: (attend(m, x),), weights((8, 8), (8, 8), (8, 8)), canonical_rules)
    assert count(program, "linear.default") == 1
    (merged,) = held(program)
    assert merged.shape == (24, 8)


def test_weights_kept_as_in_out_are_merged_too(canonical_rules: tuple[Rule, ...]) -> None:
    def kept(m: Any, x: Tensor) -> tuple[Tensor]:
        q, k, v = (heads(x @ w) for w in (m.w0, m.w1, m.w2))
        return (F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 5, 8),)

    program = fused(kept, weights((8, 8), (8, 8), (8, 8)), canonical_rules)
    assert count(program, "linear.default") == 1
    (merged,) = held(program)
    assert merged.shape == (24, 8)


def test_more_products_than_fit_into_a_line_of_a_rule_are_a_few(canonical_rules: tuple[Rule, ...]) -> None:
    def crossed(m: Any, x: Tensor) -> tuple[Tensor]:
        parts = [heads(F.linear(x, getattr(m, f"w{at}"))) for at in range(48)]
        return (torch.stack(parts).square().sum(0),)

    program = fused(crossed, weights(*[(8, 8)] * 48), canonical_rules)
    assert [tuple(merged.shape) for merged in held(program)] == [(96, 8)] * 4
    assert count(program, "linear.default") == 4


def test_weights_that_two_layers_share_are_concatenated_once(canonical_rules: tuple[Rule, ...]) -> None:
    program = fused(lambda m, x: (attend(m, attend(m, x)),), weights((8, 8), (8, 8), (8, 8)), canonical_rules)
    assert count(program, "linear.default") == 2
    assert len(held(program)) == 1


def test_a_weight_with_another_reader_is_not_copied(canonical_rules: tuple[Rule, ...]) -> None:
    program = fused(lambda m, x: (attend(m, x), m.w0.sin()), weights((8, 8), (8, 8), (8, 8)), canonical_rules)
    assert count(program, "linear.default") == 2
    assert "w0" in program.exported.state_dict
    assert sorted(tensor.shape[0] for tensor in held(program)) == [8, 16]


def test_pieces_that_are_returned_keep_their_strides(canonical_rules: tuple[Rule, ...]) -> None:
    def returned(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, m.w0).view(-1, 5, 2, 4), F.linear(x, m.w1).view(-1, 5, 2, 4)

    program = fused(returned, weights((8, 8), (8, 8)), canonical_rules)
    assert count(program, "linear.default") == 2


def test_pieces_whose_rows_a_view_joins_are_not_merged(canonical_rules: tuple[Rule, ...]) -> None:
    def joined(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, m.w0).view(-1, 40).sin(), F.linear(x, m.w1).view(-1, 40).sin()

    assert count(fused(joined, weights((8, 8), (8, 8)), canonical_rules), "linear.default") == 2


def test_products_of_other_inputs_are_not_merged(canonical_rules: tuple[Rule, ...]) -> None:
    def crossed(m: Any, x: Tensor) -> tuple[Tensor]:
        y = x.sin()
        return (heads(F.linear(x, m.w0)) @ heads(F.linear(y, m.w1)).transpose(-2, -1),)

    assert count(fused(crossed, weights((8, 8), (8, 8)), canonical_rules), "linear.default") == 2


@pytest.mark.parametrize(
    ("function", "left"),
    [
        (lambda m, x: (x * m.w0.exp().sum(),), {"aten.mul.Tensor"}),
        (lambda _, x: (x + torch.arange(8).double() / 4,), {"aten.add.Tensor"}),
        (lambda m, x: (F.linear(x, m.w0.t()),), {"aten.linear.default"}),
        (lambda m, x: (x / torch.sqrt(torch.tensor(8.0).double() * torch.tensor(3.0).double()),), {"aten.mul.Tensor"}),
        (lambda m, x: (x * m.w0[torch.tensor([3, 1, 0, 2, 4])],), {"aten.mul.Tensor"}),
        (lambda m, x: (x * m.w0[:5],), {"aten.slice.Tensor", "aten.mul.Tensor"}),  # a view is free
    ],
)
def test_what_depends_on_no_input_is_computed(
    function: Callable[[Tensor], Tensor], left: set[str], canonical_rules: tuple[Rule, ...]
) -> None:
    assert set(called(fused(function, weights((8, 8)), canonical_rules))) == left


def test_a_constant_much_larger_than_what_it_is_made_of_stays_computed(canonical_rules: tuple[Rule, ...]) -> None:
    def table(m: Any, x: Tensor) -> tuple[Tensor]:
        return (x.sum() * m.w0.repeat(600, 40),)

    assert "aten.repeat.default" in called(fused(table, weights((8, 8)), canonical_rules))


def test_duplicates_are_called_once_but_both_outputs_stay(canonical_rules: tuple[Rule, ...]) -> None:
    once = fused(lambda _, x: (x.exp().sin() + x.exp().cos(),), {}, canonical_rules)
    assert count(once, "exp.default") == 1
    both = fused(lambda _, x: (x.exp(), x.exp()), {}, canonical_rules)
    assert count(both, "exp.default") == 2


def test_ops_on_equal_views_are_duplicates(canonical_rules: tuple[Rule, ...]) -> None:
    def layers(_: Any, x: Tensor) -> tuple[Tensor]:
        first, second = (x.unflatten(2, (2, 4)).transpose(1, 2).exp() for _ in range(2))
        return (first.sin() + second.cos(),)

    assert count(fused(layers, {}, canonical_rules), "exp.default") == 1


def test_many_ops_on_equal_views_pass_the_numerical_test(canonical_rules: tuple[Rule, ...]) -> None:
    """The views come between the ops, as in the layers of a model."""

    def layers(_: Any, x: Tensor) -> tuple[Tensor]:
        y = x.exp()
        for _at in range(24):
            y = y + x.sin()[:, :, None].cos().squeeze(2)
        return (y,)

    program = programs.capture(Function(layers), torch.randn(2, 5))
    found = checked_plan(program, canonical_rules, device="cpu", targets=())
    assert found.rejected == ()
    assert count(rewrite(program, found), "cos.default") == 1


def test_draws_and_writes_are_never_duplicates(canonical_rules: tuple[Rule, ...]) -> None:
    x = torch.randn(4, 4)
    program = programs.capture(Function(lambda _, x: (torch.rand_like(x) - torch.rand_like(x),)), x)
    result = rewrite(program, plan(program, canonical_rules, device="cpu", targets=()))
    assert count(result, "rand_like.default") == 2


def test_a_folded_batch_norm_is_gone_from_the_state(canonical_rules: tuple[Rule, ...]) -> None:
    norm = torch.nn.BatchNorm2d(4)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), norm, torch.nn.ReLU())
    with torch.no_grad():
        norm.get_buffer("running_mean").copy_(torch.arange(4.0))
        norm.get_buffer("running_var").copy_(torch.arange(4.0) + 0.5)
    program = programs.capture(module.double().eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64))
    result = rewrite(program, plan(program, canonical_rules, device="cpu", targets=()))
    assert called(result) == ["aten.conv2d.default", "aten.relu.default"]
    torch.testing.assert_close(programs.run(result), programs.run(program))
    assert sorted(tensor.dim() for tensor in held(result)) == [1, 4]


def test_a_constant_that_may_not_be_replaced_does_not_keep_the_others(canonical_rules: tuple[Rule, ...]) -> None:
    """One that is written in place, one that is complex, and one that is an output."""

    def function(m: Any, x: Tensor) -> tuple[Tensor, ...]:
        weight = torch._weight_norm(m.w0, m.w1, 0)
        written = torch.zeros(8, dtype=x.dtype)
        written[1:3] += x[0, 0, :2]
        turn = torch.view_as_real(torch.polar(torch.ones(8, dtype=x.dtype), m.w2.abs() + 1))
        return F.linear(x, weight) + written + turn[:, 0] * x, m.w2.exp()

    program = fused(function, weights((8, 8), (8, 1), (8,)), canonical_rules)
    assert count(program, "_weight_norm.default") == 0
    assert count(program, "zeros.default") == count(program, "polar.default") == count(program, "exp.default") == 1
