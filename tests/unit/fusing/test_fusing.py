"""fuse(): what it fuses, what it leaves unfused so that the model can train, and that the results agree."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.fusable import MODELS, drawn
from torch import Tensor, nn

import fuseconv
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError, UsageError
from fuseconv.matching.plan import Plan, plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules


def fused_calls(module: nn.Module) -> int:
    """How many fused ops a module calls in one forward."""
    graphs = [inner.graph for inner in module.modules() if isinstance(inner, torch.fx.GraphModule)]
    return sum(getattr(node.target, "namespace", "") == "fuseconv" for graph in graphs for node in graph.nodes)


def called(module: Callable[..., Any], inputs: dict[str, Tensor] | Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    outputs = module(**inputs) if isinstance(inputs, dict) else module(inputs)
    return torch.utils._pytree.tree_leaves(outputs)


@pytest.mark.parametrize("low", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", MODELS)
def test_trains_as_the_model(name: str, mode: str, low: bool) -> None:
    model, inputs, ops = drawn(name)
    model.train(mode == "train")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        fused = fuseconv.fuse(model, inputs)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "fuse changed the model"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert fused_calls(fused) >= (1 if low else ops)

    twin = copy.deepcopy(model)
    rtol, atol = (3e-2, 3e-2) if low else (1e-5, 1e-6)
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        actual, expected = called(fused, inputs), called(twin, inputs)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)
    for values in (actual, expected):
        torch.stack([value.float().square().sum() for value in values]).sum().backward()
    for (key, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), key
        if ours.grad is not None and theirs.grad is not None:
            size = theirs.grad.norm()
            torch.testing.assert_close(ours.grad / size, theirs.grad / size, rtol=rtol, atol=atol)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", MODELS)
def test_holds_the_very_parameters_and_buffers_under_their_names(name: str) -> None:
    model, inputs, _ = drawn(name)
    fused = fuseconv.fuse(model, inputs)
    assert list(fused.state_dict()) == list(model.state_dict())
    for ours, theirs in (
        (fused.named_parameters(remove_duplicate=False), model.named_parameters(remove_duplicate=False)),
        (fused.named_buffers(remove_duplicate=False), model.named_buffers(remove_duplicate=False)),
    ):
        assert [(key, id(tensor)) for key, tensor in ours] == [(key, id(tensor)) for key, tensor in theirs]
    fused.load_state_dict({key: value * 0 for key, value in model.state_dict().items()})
    assert not any(value.any() for value in model.state_dict().values())


def test_a_step_of_an_optimizer_made_before_is_seen_by_both() -> None:
    model, inputs, _ = drawn("perceptron")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    fused = fuseconv.fuse(model, inputs)
    before = fused(inputs)
    before.sum().backward()
    optimizer.step()
    after = fused(inputs)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, model(inputs))


def test_assigned_parameters_are_used() -> None:
    model, inputs, _ = drawn("perceptron")
    fused = fuseconv.fuse(model, inputs)
    fused.load_state_dict({key: torch.zeros_like(value) for key, value in fused.state_dict().items()}, assign=True)
    assert not fused(inputs).any()


def test_a_copy_is_a_model_of_its_own() -> None:
    model, inputs, _ = drawn("perceptron")
    fused = fuseconv.fuse(model, inputs)
    twin, before = copy.deepcopy(fused), fused(inputs)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(twin(inputs), before)
    assert not fused(inputs).any()


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_the_mode_is_part_of_the_graph(mode: str) -> None:
    model, inputs, _ = drawn("everything")
    model.train(mode == "train")
    fused = fuseconv.fuse(model, inputs)
    assert fused.train(mode == "train") is fused
    other = {"train": "eval", "eval": "train"}[mode]
    with pytest.raises(UsageError, match=f"captured in {mode} mode") as caught:
        getattr(fused, other)()
    assert f"model.{other}()" in caught.value.fix
    dropped = [step.rule for step in fused.plan.steps if step.rule == "eval-dropout"]
    assert len(dropped) == (mode == "eval")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fused, x: fused(x.double()), "input input has dtype f64, but the contract says f32"),
        (lambda fused, x: fused(torch.randn(3, 8)), "input input has size 3 at axis 0, but the contract says 5"),
        (lambda fused, x: fused(input=x), "captured with the arguments"),
        (lambda fused, x: fused(x, x), "captured with the arguments"),
        (lambda fused, x: fused(3), "input input is of type int, not a torch.Tensor"),
        (
            lambda fused, x: copy.deepcopy(fused).double()(x),
            "parameter 0.weight has dtype f64, but the contract says f32",
        ),
    ],
    ids=["dtype", "shape", "keyword", "two", "number", "converted"],
)
def test_another_call_is_refused(call: Callable[[Any, Any], object], message: str) -> None:
    model, inputs, _ = drawn("perceptron")
    fused = fuseconv.fuse(model, inputs)
    with pytest.raises(ContractError, match=message):
        call(fused, inputs)


def test_another_autocast_is_refused() -> None:
    model, inputs, _ = drawn("perceptron")
    fused = fuseconv.fuse(model, inputs)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ContractError, match=r"autocast off.*called with torch.bf"),
    ):
        fused(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        low = fuseconv.fuse(model, inputs)
        assert low(inputs).dtype == torch.bfloat16
    with pytest.raises(ContractError, match=r"autocast torch.bfloat16.*called with off"):
        low(inputs)


def test_dynamic_sizes() -> None:
    model, inputs, _ = drawn("perceptron")
    batch = torch.export.Dim("batch", min=1, max=64)
    fused = fuseconv.fuse(model, inputs, dynamic_shapes=({0: batch},))
    assert fused_calls(fused) >= 2
    for rows in (1, 2, 5, 64):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(fused(x), model(x))
    refused = {
        (65, 8): r"input input has size 65 at axis 0, outside s\d+:1..64",
        (0, 8): r"input input has size 0 at axis 0, outside s\d+:1..64",
        (4, 9): "input input has size 9 at axis 1, but the contract says 8",
        (4,): r"input input has 1 dims \[4\], but the contract says 2",
    }
    for shape, message in refused.items():
        with pytest.raises(ContractError, match=message):
            fused(torch.randn(shape))


def test_a_part_of_a_larger_tensor_is_an_example() -> None:
    model, _, _ = drawn("perceptron")
    assert fused_calls(fuseconv.fuse(model, torch.randn(20, 8)[5:10])) >= 2
    assert fused_calls(fuseconv.fuse(model, torch.randn(1, 8).expand(5, 8))) >= 2


def test_a_constant_argument_is_part_of_the_graph() -> None:
    class Scaled(nn.Module):
        def forward(self, x: Tensor, times: int) -> Tensor:
            return torch.relu(x * times)

    fused = fuseconv.fuse(Scaled(), (torch.randn(3), 2))
    assert torch.equal(fused(torch.ones(3), 2), torch.full((3,), 2.0))
    with pytest.raises(ContractError, match="input times is 3, but the contract says 2, which is part of the graph"):
        fused(torch.ones(3), 3)


def test_compiles_without_a_break() -> None:
    model, inputs, _ = drawn("everything")
    fused = fuseconv.fuse(model.eval(), inputs)
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(called(compiled, inputs), called(model, inputs), rtol=1e-5, atol=1e-6)


def test_exports_again() -> None:
    model, inputs, _ = drawn("perceptron")
    graph = torch.export.export(fuseconv.fuse(model, inputs), (inputs,), strict=False).graph
    assert sum(getattr(node.target, "namespace", "") == "fuseconv" for node in graph.nodes) >= 2


def planned(model: nn.Module, inputs: dict[str, Tensor] | Tensor, trainable: bool) -> Plan:
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
    with torch.enable_grad():
        exported = torch.export.export(model, args, kwargs, strict=False)
    program = Program(exported, Contract((), ()), (), trainable=trainable)
    return plan(program, load_rules(), device="cpu", targets=["export"])


def test_values_that_may_change_are_read_only_in_a_conversion() -> None:
    model, inputs, _ = drawn("everything")
    counts = {trainable: planned(model, inputs, trainable).counts() for trainable in (False, True)}
    # scale and gain are scalars of the model, and linear layers take them into their weights; torch.tensor(3.0) is a
    # literal.
    assert (counts[False]["linear-scale"], counts[True].get("linear-scale")) == (2, None)
    assert (counts[False]["mul-constant"], counts[True]["mul-constant"]) == (1, 1)
    # Of three detached values one is a literal, which nothing differentiates by.
    assert (counts[False]["alias"], counts[True]["alias"]) == (2, 1)


class Attention(nn.Module):
    """Causal attention: queries, keys and values of one input; its mask depends on no input and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (linear(x).view(2, 5, 2, 4).transpose(1, 2) for linear in (self.q, self.k, self.v))
        visible = torch.arange(5)[None, :] <= torch.arange(5)[:, None]
        mask = torch.where(visible, 0.0, -torch.inf) * torch.tensor(1.0)
        return ((q @ k.transpose(-2, -1)) * 0.5 + mask).softmax(-1) @ v


class TwoBiases(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 4)
        self.more = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.more


class Scaled(nn.Linear):
    scale: Tensor

    def __init__(self) -> None:
        super().__init__(8, 4)
        self.register_buffer("scale", torch.full((4, 1), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight * self.scale, self.bias)


# What a rule computes with in a conversion, and whether a model that learns is near enough for a reason.
WEIGHTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "merge-linear-bias": (Attention, (2, 5, 8), True),
    "linear-shift": (TwoBiases, (3, 8), True),
    "conv2d-batch-norm": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval(), (2, 3, 6, 6), True),
    "linear-batch-norm": (lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).eval(), (3, 8), True),
    "constants": (Scaled, (3, 8), False),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_may_change_are_computed_with_only_in_a_conversion(name: str) -> None:
    torch.manual_seed(0)
    make, shape, near = WEIGHTS[name]
    model, x = make(), torch.randn(shape)
    assert name in planned(model, x, trainable=False).counts()
    learning = fuseconv.fuse(model, x).plan
    assert learning.counts().get(name, 0) == 0
    reasons = [miss.reason for miss in learning.misses if miss.rule == name]
    assert bool(reasons) == near
    assert all("only constants as operands" in reason for reason in reasons)


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_model_that_is_folded_in_a_conversion_still_learns(name: str) -> None:
    torch.manual_seed(0)
    make, shape, _ = WEIGHTS[name]
    model, x = make(), torch.randn(shape)
    fused = fuseconv.fuse(model, x)
    assert list(fused.state_dict()) == list(model.state_dict())
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.mul_(1.5).add_(0.25)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-5, atol=1e-5)


def test_what_is_computed_of_literals_is_a_constant_of_the_fused_module() -> None:
    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * (torch.tensor([1.0, 2.0] * 4) + torch.arange(8)).exp()

    model, x = Constant(), torch.randn(3, 8)
    fused = fuseconv.fuse(model, x)
    (program,) = (module for module in fused.modules() if isinstance(module, torch.fx.GraphModule))
    (node,) = (node for node in program.graph.nodes if node.op == "call_function")
    assert node.target is torch.ops.aten.mul.Tensor
    assert not fused.state_dict()
    torch.testing.assert_close(copy.deepcopy(fused)(x), model(x))


def test_statistics_are_updated_as_often_as_before() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.norm(x)) + torch.sin(self.norm(x))

    model, x = Twice(), torch.randn(6, 8)
    assert "duplicates" in planned(model.eval(), x, trainable=False).counts()
    assert "duplicates" not in planned(model.train(), x, trainable=False).counts()
    assert "duplicates" not in planned(model, x, trainable=True).counts()


class Keeps(nn.Module):
    kept: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(8.0).cos()
        return x * self.kept


def test_a_model_that_keeps_what_it_computed_stays_usable() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), Keeps()), torch.randn(3, 8)
    fused = fuseconv.fuse(model, x)
    assert type(model[2].kept) is Tensor
    torch.testing.assert_close(fused(x), model(x))


def test_a_root_module_that_keeps_what_it_computed_leaves_its_inputs_alone() -> None:
    x = torch.randn(3, 8)
    given = x.clone()
    fused = fuseconv.fuse(Keeps(), x)
    torch.testing.assert_close(fused(x), given * torch.arange(8.0).cos())
    torch.testing.assert_close(x, given, rtol=0, atol=0)


def test_a_write_to_an_input_is_kept() -> None:
    class Writes(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            x.copy_(y)
            return x * 2

    x, y = torch.randn(3, 8), torch.randn(3, 8)
    fused = fuseconv.fuse(Writes(), (x.clone(), y))
    fused(x, y)
    torch.testing.assert_close(x, y, rtol=0, atol=0)
