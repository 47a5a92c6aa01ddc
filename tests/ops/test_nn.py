"""fuseconv.nn: a table of pairs, each of our modules with the torch.nn modules that it replaces."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuseconv import nn as fused
from fuseconv.errors import UsageError
from fuseconv.numerics.tolerance import compare
from fuseconv.ops import ACTIVATIONS
from fuseconv.ops.activation import activate

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


class Activated(nn.Linear):
    """What LinearAct stands for."""

    def __init__(self, features: int, out: int, bias: bool = True, act: str = "none") -> None:
        super().__init__(features, out, bias)
        self.act = act

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        y = activate(super().forward(x), self.act)
        return y if residual is None else y + residual


class Gated(nn.Module):
    """What LinearGated stands for: Llama's two matrices."""

    def __init__(self, features: int, hidden: int, bias: bool = False, act: str = "silu") -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(features, hidden, bias), nn.Linear(features, hidden, bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return activate(self.gate_proj(x), self.act) * self.up_proj(x)


class Added(nn.LayerNorm):
    """What AddLayerNorm stands for."""

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        s = x + residual
        return super().forward(s), s


@dataclass(frozen=True)
class Pair:
    name: str
    ours: Callable[[], nn.Module]
    theirs: Callable[[], nn.Module]
    shapes: tuple[tuple[int, ...], ...]


def perceptron(*sizes: int, act: Callable[[], nn.Module] = nn.ReLU, last: bool = False) -> list[nn.Module]:
    layers = [layer for k, n in itertools.pairwise(sizes) for layer in (nn.Linear(k, n), act())]
    return layers if last else layers[:-1]


LINEAR = [
    *(
        Pair(
            f"linear_{act}",
            partial(fused.LinearAct, 24, 17, act=act),
            partial(Activated, 24, 17, act=act),
            ((5, 24),),
        )
        for act in ACTIVATIONS
    ),
    Pair("linear_plain", lambda: fused.LinearAct(24, 17), lambda: nn.Linear(24, 17), ((2, 3, 24),)),
    Pair("linear_no_bias", lambda: fused.LinearAct(24, 17, False), lambda: nn.Linear(24, 17, False), ((5, 24),)),
    Pair(
        "linear_residual",
        lambda: fused.LinearAct(24, 17, act="gelu"),
        lambda: Activated(24, 17, act="gelu"),
        ((2, 5, 24), (2, 5, 17)),
    ),
    Pair(
        "linear_no_rows", lambda: fused.LinearAct(24, 17, act="relu"), lambda: Activated(24, 17, act="relu"), ((0, 24),)
    ),
]
NORM = [
    Pair("norm", lambda: fused.AddLayerNorm(48), lambda: Added(48), ((2, 5, 48), (2, 5, 48))),
    Pair("norm_dims", lambda: fused.AddLayerNorm((6, 8)), lambda: Added((6, 8)), ((3, 6, 8), (3, 6, 8))),
    Pair("norm_no_bias", lambda: fused.AddLayerNorm(48, bias=False), lambda: Added(48, bias=False), ((4, 48), (4, 48))),
    Pair(
        "norm_plain",
        lambda: fused.AddLayerNorm((6, 8), 1e-3, elementwise_affine=False),
        lambda: Added((6, 8), 1e-3, elementwise_affine=False),
        ((3, 6, 8), (3, 6, 8)),
    ),
]
GATED = [
    *(
        Pair(
            f"gated_{act}",
            partial(fused.LinearGated, 24, 17, act=act),
            partial(Gated, 24, 17, act=act),
            ((5, 24),),
        )
        for act in ("silu", "gelu", "sigmoid")
    ),
    Pair("gated_bias", lambda: fused.LinearGated(24, 17, True), lambda: Gated(24, 17, True), ((2, 3, 24),)),
]
PERCEPTRON = [
    Pair(
        "mlp_two",
        lambda: fused.MLP(*perceptron(24, 40, 10)),
        lambda: nn.Sequential(*perceptron(24, 40, 10)),
        ((7, 24),),
    ),
    Pair(
        "mlp_three",
        lambda: fused.MLP(*perceptron(24, 40, 33, 10, act=nn.GELU, last=True)),
        lambda: nn.Sequential(*perceptron(24, 40, 33, 10, act=nn.GELU, last=True)),
        ((2, 7, 24),),
    ),
]
PAIRS = [*LINEAR, *NORM, *GATED, *PERCEPTRON]
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def made(pair: Pair, device: str = "cpu", dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """Both modules with the same weights: ours loads the other's state dict."""
    torch.manual_seed(0)
    theirs = pair.theirs().to(device, dtype)
    ours = pair.ours().to(device, dtype)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def drawn(pair: Pair, device: str = "cpu", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in pair.shapes]


def outcome(module: nn.Module, inputs: list[Tensor], names: list[str]) -> dict[str, Tensor]:
    """Outputs, and gradients of the inputs and of the parameters, both halves of a gated layer in one."""
    outputs = module(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    seeds = [torch.linspace(-1, 1, max(y.numel(), 1)).to(y)[: y.numel()].view(y.shape) for y in outputs]
    parameters = dict(module.named_parameters())
    grads = torch.autograd.grad(outputs, [*inputs, *parameters.values()], seeds)
    by_name = dict(zip(parameters, grads[len(inputs) :], strict=True))
    found = {f"output {at}": y for at, y in enumerate(outputs)}
    found |= {f"input {at}": grad for at, grad in enumerate(grads[: len(inputs)])}
    for name in names:
        halves = [by_name[f"{half}.{name}"] for half in ("gate_proj", "up_proj") if f"{half}.{name}" in by_name]
        found[name] = torch.cat(halves) if halves else by_name[name]
    return {name: value.detach() for name, value in found.items()}


@each_pair
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_computes_and_differentiates_as_what_it_stands_for(pair: Pair, device: str, dtype: torch.dtype) -> None:
    ours, theirs = made(pair, device, dtype)
    wide, inputs = copy.deepcopy(theirs).double(), drawn(pair, device, dtype)
    names = [name for name, _ in ours.named_parameters()]
    actual, original = outcome(ours, inputs, names), outcome(theirs, inputs, names)
    fp64 = outcome(wide, [x.detach().double().requires_grad_() for x in inputs], names)
    for name, value in original.items():
        row = compare(actual[name], value, fp64[name])
        assert row.ok, f"{name}: {row.reason}"


@each_pair
def test_autocast_gives_the_dtypes_of_what_it_stands_for(pair: Pair) -> None:
    ours, theirs = made(pair)
    names = [name for name, _ in ours.named_parameters()]
    with torch.autocast("cpu", torch.bfloat16):
        actual, original = outcome(ours, drawn(pair), names), outcome(theirs, drawn(pair), names)
    assert {k: v.dtype for k, v in actual.items()} == {k: v.dtype for k, v in original.items()}
    fp64 = outcome(copy.deepcopy(theirs).double(), [x.detach().double().requires_grad_() for x in drawn(pair)], names)
    for name, value in original.items():
        row = compare(actual[name], value, fp64[name])
        assert row.ok, f"{name}: {row.reason}"


@each_pair
def test_exports_as_one_op(pair: Pair) -> None:
    ours, _ = made(pair)
    graph = torch.export.export(ours, tuple(x.detach() for x in drawn(pair)), strict=False).graph
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert sum(name.startswith("fuseconv.") for name in called) == 1
    assert not [name for name in called if "linear" in name and not name.startswith("fuseconv.")]


@pytest.mark.parametrize(
    "pair",
    [pair for pair in PAIRS if pair.name in ("linear_residual", "norm_dims", "mlp_two", "gated_silu")],
    ids=lambda pair: pair.name,
)
def test_compiles_without_a_break(pair: Pair) -> None:
    ours, _ = made(pair)
    inputs = drawn(pair)
    with torch._dynamo.config.patch(suppress_errors=False):
        compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(*inputs), ours(*inputs), rtol=0, atol=0)


@each_pair
def test_copies_and_its_state_dict_are_its_own(pair: Pair) -> None:
    ours, _ = made(pair)
    inputs, names = drawn(pair), [name for name, _ in ours.named_parameters()]
    before = outcome(ours, inputs, names)
    twin, fresh = copy.deepcopy(ours), pair.ours()
    fresh.load_state_dict(ours.state_dict())
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(1)
    for other in (twin, fresh):
        after = outcome(other, inputs, names)
        assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("pair", LINEAR + NORM, ids=lambda pair: pair.name)
def test_is_initialised_as_what_it_stands_for(pair: Pair) -> None:
    torch.manual_seed(3)
    ours = pair.ours().state_dict()
    torch.manual_seed(3)
    theirs = pair.theirs().state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_gated_is_initialised_as_two_layers() -> None:
    torch.manual_seed(3)
    ours = fused.LinearGated(24, 170, bias=True)
    bound = 24**-0.5
    for parameter in (ours.weight, ours.bias):
        assert parameter is not None
        assert 0.9 * bound < parameter.abs().max() <= bound
    assert fused.LinearGated(0, 4).weight.shape == (8, 0)


def test_from_linear_shares_the_parameters() -> None:
    linear = nn.Linear(24, 17).eval()
    ours = fused.LinearAct.from_linear(linear, "gelu")
    assert ours.weight is linear.weight
    assert ours.bias is linear.bias
    assert not ours.training
    x = torch.randn(3, 24)
    torch.testing.assert_close(ours(x), functional.gelu(linear(x)))
    assert fused.LinearAct.from_linear(nn.Linear(3, 2, bias=False)).bias is None


def test_from_layer_norm_shares_the_parameters() -> None:
    norm = nn.LayerNorm(48, eps=1e-3)
    ours = fused.AddLayerNorm.from_layer_norm(norm)
    assert ours.weight is norm.weight
    assert ours.bias is norm.bias
    assert ours.eps == 1e-3
    plain = fused.AddLayerNorm.from_layer_norm(nn.LayerNorm(48, elementwise_affine=False))
    assert plain.weight is None


def test_gated_from_linear_and_from_llamas_names() -> None:
    theirs = Gated(24, 17, bias=True)
    ours = fused.LinearGated.from_linear(theirs.gate_proj, theirs.up_proj)
    assert torch.equal(ours.weight, torch.cat([theirs.gate_proj.weight, theirs.up_proj.weight]))
    assert ours.bias is not None
    assert torch.equal(ours.bias, torch.cat([theirs.gate_proj.bias, theirs.up_proj.bias]))
    holder = nn.Module()
    holder.mlp = fused.LinearGated(24, 17, bias=True)
    holder.load_state_dict({f"mlp.{name}": value for name, value in theirs.state_dict().items()})
    assert torch.equal(holder.mlp.weight, ours.weight)
    with pytest.raises(RuntimeError, match=r"Missing key.*weight"):
        ours.load_state_dict({"gate_proj.weight": theirs.gate_proj.weight})
    with pytest.raises(UsageError, match=r"gate is .*up is"):
        fused.LinearGated.from_linear(nn.Linear(24, 17), nn.Linear(24, 17, bias=False))


def test_mlp_from_sequential_shares_the_layers_under_their_names() -> None:
    layers = OrderedDict(zip(("up", "act", "down"), perceptron(24, 40, 10), strict=True))
    theirs = nn.Sequential(layers).eval()
    ours = fused.MLP.from_sequential(theirs)
    assert ours.up is theirs.up
    assert not ours.training
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert (ours.act, ours.last_act) == ("relu", "none")


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([nn.Linear(4, 4)], "2 or 3 linear layers, but 1 are given"),
        (perceptron(4, 4, 4, 4, 4), "2 or 3 linear layers, but 4 are given"),
        ([nn.Linear(4, 4), nn.ELU(), nn.Linear(4, 4)], "ELU.* is neither"),
        ([nn.Linear(4, 4), nn.ReLU(), nn.GELU(), nn.Linear(4, 4)], "GELU.* is neither"),
        ([nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 4)], "ReLU.* is neither"),
        ([*perceptron(4, 4, 4), nn.GELU(), nn.Linear(4, 4)], "different activations, relu and gelu"),
        (perceptron(4, 257, 4), "a layer has width 257"),
        ([], "2 or 3 linear layers, but 0 are given"),
    ],
)
def test_mlp_refuses_other_layers(layers: list[nn.Module], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fused.MLP(*layers)


@pytest.mark.parametrize("make", [fused.LinearAct, fused.LinearGated])
def test_an_unknown_activation_is_refused(make: Callable[..., nn.Module]) -> None:
    with pytest.raises(UsageError, match="unknown activation 'celu'"):
        make(3, 4, act="celu")


def test_prints_what_it_is() -> None:
    assert repr(fused.LinearAct(3, 4, act="silu")) == "LinearAct(in_features=3, out_features=4, bias=True, act=silu)"
    assert "hidden_features=4, bias=False, act=silu" in repr(fused.LinearGated(3, 4))
