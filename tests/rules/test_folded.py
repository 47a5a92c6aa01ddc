"""Layers that vanish into their neighbours: batch norm, layer scale, padding, group norm, pools, last activations."""

from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.rule import Rule


class GroupNorm(nn.Module):
    """Group norm as papers write it; `axes` keeps the channels of a group in axes of their own."""

    def __init__(self, groups: int, channels: int, axes: bool) -> None:
        super().__init__()
        self.groups, self.axes = groups, axes
        self.weight, self.bias = (
            nn.Parameter(torch.randn(1, channels, 1, 1)),
            nn.Parameter(torch.randn(1, channels, 1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        n, c, h, w = x.shape
        dims = (2, 3, 4) if self.axes else (-1,)
        sizes = (c // self.groups, h, w) if self.axes else (-1,)
        v = x.view(n, self.groups, *sizes)
        mean, var = v.mean(dims, keepdim=True), v.var(dims, unbiased=False, keepdim=True)
        return ((v - mean) / torch.sqrt(var + 1e-5)).view(n, c, h, w) * self.weight + self.bias


class Padded(nn.Module):
    def __init__(self, pads: tuple[int, ...], **conv: Any) -> None:
        super().__init__()
        self.pads, self.conv = pads, nn.Conv2d(3, 4, 3, **conv)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, self.pads))


class Scaled(nn.Module):
    """A layer with a layer scale, as transformers and timm write it."""

    def __init__(self, layer: nn.Module, *shape: int, in_place: bool = False, scale: float = 1.0) -> None:
        super().__init__()
        self.layer, self.in_place = layer, in_place
        self.gamma = nn.Parameter(scale * torch.empty(shape).uniform_(0.5, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mul_(self.gamma) if self.in_place else self.gamma * self.layer(x)


class Enlarged(nn.Module):
    """A block of EDSR: a number scales what is added to its input."""

    def __init__(self, conv: type[nn.Module], *sizes: int) -> None:
        super().__init__()
        self.layer = conv(*sizes)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * self.layer(x)


class Learned(nn.Module):
    """A linear whose result a learned number multiplies. With `late`, it is a linear only after another rule."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.tensor(0.3))
        self.late = late

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight if self.late else F.linear(x, self.weight)) * self.scale


class Residual(nn.Module):
    """A block of ConvNeXt: its linears are channels last, its residual channels first."""

    def __init__(self, residual_first: bool) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(6, 6, 3, padding=1, groups=6), Scaled(nn.Linear(6, 6), 6)
        self.residual_first = residual_first

    def forward(self, x: Tensor) -> Tensor:
        h = self.last(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + h if self.residual_first else h + x


class Frozen(nn.Module):
    """A batch norm as detection models freeze it: its statistics and factors are buffers of a product and a sum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "bias", "mean", "var"):
            self.register_buffer(name, torch.empty(channels).uniform_(0.5, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, mean, var = (
            self.get_buffer(name).reshape(1, -1, 1, 1) for name in ("weight", "bias", "mean", "var")
        )
        scale = weight * (var + 1e-5).rsqrt()
        return x * scale + (bias - mean * scale)


class Sum(nn.Module):
    """Layers whose results are added by Python's sum, which begins with 0."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(sum(layer(x) for layer in self.layers))


class Standardized(nn.Conv2d):
    """A convolution whose weight is standardized in each call, as in BiT."""

    def forward(self, x: Tensor) -> Tensor:
        var, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
        return F.conv2d(x, (self.weight - mean) / torch.sqrt(var + 1e-10), self.bias)


def norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """Gives a batch norm statistics and factors that are not those it starts with."""
    for tensor in (*module.parameters(), module.get_buffer("running_mean"), module.get_buffer("running_var")):
        tensor.data.uniform_(0.5, 2)
    return module


def image(channels: int = 6) -> Tensor:
    return torch.randn(2, channels, 7, 7)


MLP = "fuseconv.mlp.default"
ADD = "aten.add.Tensor"
CONV_ACT = "fuseconv.conv_act.default"
CONV1D = "aten.conv1d.default"
LINES = torch.randn(2, 6, 9)
CONV = ["aten.conv2d.default"]
MUL_ADD = "fuseconv.mul_add.default"
PERMUTE = "aten.permute.default"
BLOCK = ["aten.conv2d.default", PERMUTE, PERMUTE, "fuseconv.linear_act.default", PERMUTE]

TABLE = {
    "group norm, one axis": (lambda: GroupNorm(3, 6, False), image(), ["fuseconv.group_norm_act.default"]),
    "group norm, axes": (lambda: GroupNorm(3, 6, True), image(), ["fuseconv.group_norm_act.default"]),
    "zero pad": (lambda: nn.Sequential(nn.ZeroPad2d(2), nn.Conv2d(6, 4, 3)), image(), ["aten.conv2d.default"]),
    "pad on padding": (lambda: Padded((1, 1, 2, 2), padding=1, stride=2), image(3), ["aten.conv2d.default"]),
    "zero pad 1d": (lambda: nn.Sequential(nn.ConstantPad1d(2, 0.0), nn.Conv1d(6, 4, 3)), LINES, [CONV1D]),
    "one side": (lambda: Padded((0, 1, 0, 1)), image(3), ["aten.pad.default", "aten.conv2d.default"]),
    "one side, an activation": (lambda: nn.Sequential(Padded((0, 1, 0, 1)), nn.SiLU()), image(3), [CONV_ACT]),
    "a causal convolution": (
        lambda: nn.Sequential(nn.ConstantPad1d((4, 0), 0.0), nn.Conv1d(6, 4, 3, dilation=2), nn.SiLU()),
        LINES,
        [CONV_ACT],
    ),
    "a causal convolution of videos": (
        lambda: nn.Sequential(nn.ConstantPad3d((1, 1, 1, 1, 2, 0), 0.0), nn.Conv3d(3, 4, 3), nn.SiLU()),
        torch.randn(2, 3, 4, 5, 6),
        [CONV_ACT],
    ),
    "a crop": (lambda: Padded((-1, -1, -1, -1)), image(3), ["aten.pad.default", "aten.conv2d.default"]),
    "reflected": (
        lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3)),
        image(),
        ["aten.pad.default", *CONV],
    ),
    "batch norm alone": (lambda: norm(nn.BatchNorm2d(6)), image(), [MUL_ADD]),
    "batch norm of sequences": (lambda: norm(nn.BatchNorm1d(6)), torch.randn(2, 6, 9), [MUL_ADD]),
    "batch norm before a padded conv": (
        lambda: nn.Sequential(norm(nn.BatchNorm2d(6)), nn.Conv2d(6, 4, 3, padding=1)),
        image(),
        [MUL_ADD, "aten.conv2d.default"],
    ),
    "batch norm before a conv": (lambda: nn.Sequential(norm(nn.BatchNorm2d(6)), nn.Conv2d(6, 4, 3, 2)), image(), CONV),
    "batch norm before a conv without bias": (
        lambda: nn.Sequential(norm(nn.BatchNorm1d(6)), nn.Conv1d(6, 4, 1, bias=False)),
        LINES,
        [CONV1D],
    ),
    "batch norm before a grouped conv": (
        lambda: nn.Sequential(norm(nn.BatchNorm2d(6)), nn.Conv2d(6, 4, 3, groups=2)),
        image(),
        [MUL_ADD, "aten.conv2d.default"],
    ),
    "batch norm after a transposed conv": (
        lambda: nn.Sequential(nn.ConvTranspose2d(6, 4, 3, 2, 1, 1, bias=False), norm(nn.BatchNorm2d(4))),
        image(),
        ["aten.conv_transpose2d.input"],
    ),
    "batch norm after a transposed conv of sequences": (
        lambda: nn.Sequential(nn.ConvTranspose1d(6, 4, 3, dilation=2), norm(nn.BatchNorm1d(4))),
        LINES,
        ["aten.conv_transpose1d.default"],
    ),
    "batch norm after a grouped transposed conv": (
        lambda: nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2, groups=2), norm(nn.BatchNorm2d(4))),
        image(),
        ["aten.conv_transpose2d.input", MUL_ADD],
    ),
    "batch norm without weight": (
        lambda: nn.Sequential(nn.Conv2d(6, 4, 3), norm(nn.BatchNorm2d(4, affine=False))),
        image(),
        ["aten.conv2d.default"],
    ),
    "a frozen batch norm": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3, bias=False), Frozen(4)), image(), CONV),
    "a frozen batch norm after a bias": (lambda: nn.Sequential(nn.Conv2d(6, 4, 3), Frozen(4)), image(), CONV),
    "a sum from zero": (
        lambda: Sum(nn.Conv2d(6, 4, 3), nn.Conv2d(6, 4, 3)),
        image(),
        [*CONV, "fuseconv.conv_act.default"],
    ),
    "a sum of linears from zero": (
        lambda: Sum(nn.Linear(6, 4), nn.Linear(6, 4)),
        torch.randn(5, 6),
        ["aten.linear.default", "fuseconv.linear_act.default"],
    ),
    "a sum of other values from zero": (
        lambda: Sum(nn.Softplus(), nn.Softsign()),
        torch.randn(5, 6),
        ["aten.softplus.default", ADD, "aten.abs.default", ADD, "aten.div.Tensor", ADD],
    ),
    "weight standardization": (lambda: Standardized(6, 4, 3), image(), CONV),
    "batch norm between linears": (
        lambda: nn.Sequential(nn.Linear(6, 300), norm(nn.BatchNorm1d(300)), nn.Linear(300, 4)),
        torch.randn(5, 6),
        ["aten.linear.default", "aten.linear.default"],
    ),
    "batch norm before a linear": (
        lambda: nn.Sequential(norm(nn.BatchNorm1d(6)), nn.Linear(6, 4)),
        torch.randn(5, 6),
        ["aten.linear.default"],
    ),
    "batch norm before a linear without bias": (
        lambda: nn.Sequential(norm(nn.BatchNorm1d(6)), nn.Linear(6, 4, bias=False)),
        torch.randn(5, 6),
        ["aten.linear.default"],
    ),
    "layer scale": (lambda: Scaled(nn.Linear(6, 4), 4), torch.randn(2, 5, 6), ["aten.linear.default"]),
    "layer scale in place": (
        lambda: Scaled(nn.Linear(6, 4, bias=False), 1, 1, 4, in_place=True),
        torch.randn(2, 5, 6),
        ["aten.linear.default"],
    ),
    "layer scale of images": (lambda: Scaled(nn.Conv2d(6, 4, 3), 4, 1, 1), image(), ["aten.conv2d.default"]),
    "another axis than the channels'": (
        lambda: Scaled(nn.Conv2d(6, 5, 3), 5),
        image(),
        ["aten.conv2d.default", "aten.mul.Tensor"],
    ),
    "a factor per row": (
        lambda: Scaled(nn.Linear(6, 4), 5, 1),
        torch.randn(2, 5, 6),
        ["aten.linear.default", "aten.mul.Tensor"],
    ),
    "more axes than the product": (
        lambda: Scaled(nn.Linear(6, 4), 1, 1, 4),
        torch.randn(5, 6),
        ["aten.linear.default", "aten.mul.Tensor"],
    ),
    "a block of EDSR": (lambda: Enlarged(nn.Conv2d, 6, 6, 1), image(), ["fuseconv.conv_act.default"]),
    "a block of EDSR of sequences": (
        lambda: Enlarged(nn.Conv1d, 6, 6, 1),
        LINES,
        ["fuseconv.conv_act.default"],
    ),
    "a scaled linear before a residual": (
        lambda: Enlarged(nn.Linear, 6, 6),
        torch.randn(2, 6),
        ["fuseconv.linear_act.default"],
    ),
    "numbers after a linear": (
        lambda: programs.Function(lambda m, x: -F.linear(x, m.w) / 3 * 2, {"w": torch.randn(4, 6)}),
        torch.randn(5, 6),
        ["aten.linear.default"],
    ),
    "a number after a linear of a tied weight": (
        lambda: programs.Function(lambda m, x: F.linear(F.linear(x, m.w), m.w) * 3, {"w": torch.randn(6, 6)}),
        torch.randn(5, 6),
        ["aten.linear.default", "aten.linear.default", "aten.mul.Tensor"],
    ),
    "a learned number after a linear": (lambda: Learned(False), torch.randn(5, 6), ["aten.linear.default"]),
    "a block of ConvNeXt": (lambda: Residual(residual_first=False), image(), BLOCK),
    "a block of ConvNeXt whose layout is restored": (
        lambda: Residual(residual_first=True),
        image(),
        [*BLOCK, "aten.clone.default"],
    ),
    "a window over all positions": (lambda: nn.AvgPool2d(1280, ceil_mode=True), image(), ["aten.mean.dim"]),
    "a window over most positions": (lambda: nn.AvgPool2d((7, 6)), image(), ["aten.avg_pool2d.default"]),
    "a sum over all positions": (
        lambda: nn.AvgPool2d(7, divisor_override=1),
        image(),
        ["aten.avg_pool2d.default"],
    ),
    "a last relu": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU()),
        torch.randn(5, 8),
        [MLP],
    ),
    "a last sigmoid": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4), nn.Sigmoid()),
        torch.randn(5, 8),
        [MLP],
    ),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_what_is_left(name: str, dtype: torch.dtype, default_rules: tuple[Rule, ...]) -> None:
    build, x, ops = TABLE[name]
    torch.manual_seed(0)
    program = programs.capture(build().to(dtype), x.to(dtype), dims=({0: torch.export.Dim("n", min=1, max=64)},))
    result = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert [op for op in called if op != "aten.sym_size.int"] == ops
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize(("dtype", "left"), [(torch.float16, 1), (torch.bfloat16, 0), (torch.float32, 0)], ids=str)
def test_a_factor_that_a_dtype_cannot_fold_is_left(
    dtype: torch.dtype, left: int, default_rules: tuple[Rule, ...]
) -> None:
    """A new ConvNeXt has a layer scale of 1e-6: its products with weights are zeros in f16."""
    torch.manual_seed(0)
    model = Scaled(nn.Linear(64, 32), 32, scale=1e-6).to(dtype)
    found = plan(programs.capture(model, torch.randn(5, 64).to(dtype)), default_rules, device="cpu", targets=())
    assert found.counts().get("linear-scale", 0) == 1 - left
    reasons = [miss.reason for miss in found.misses if miss.rule == "linear-scale"]
    assert any("products that f16 represents" in reason for reason in reasons) == bool(left)


@pytest.mark.parametrize("late", [False, True], ids=["linear", "product"])
def test_a_learned_number_is_folded_as_a_tensor_or_not_at_all(late: bool, default_rules: tuple[Rule, ...]) -> None:
    """A number in a plan is that of the old weights: with new ones, the plan must compute what the new model does."""
    torch.manual_seed(0)
    old, new = (programs.capture(Learned(late), torch.randn(5, 6)) for _ in range(2))
    with torch.no_grad():
        for name, tensor in new.exported.state_dict.items():
            tensor.copy_(old.exported.state_dict[name] * 1.5)
    found = plan(old, default_rules, device="cpu", targets=())
    torch.testing.assert_close(programs.run(rewrite(new, found)), programs.run(new))


@pytest.mark.parametrize("factor", [True, False, 2j, 2.0], ids=str)
def test_only_a_real_number_is_folded(factor: complex, default_rules: tuple[Rule, ...]) -> None:
    torch.manual_seed(0)
    parameters = {"weight": torch.randn(4, 6), "bias": torch.randn(4)}
    module = programs.Function(lambda own, x: F.linear(x, own.weight, own.bias) * factor, parameters)
    program = programs.capture(module, torch.randn(5, 6), dims=({},))
    found = plan(program, default_rules, device="cpu", targets=())
    assert found.counts().get("linear-scale", 0) == (factor == 2.0)
    torch.testing.assert_close(programs.run(rewrite(program, found)), programs.run(program))


def test_a_window_is_compared_with_the_largest_map(default_rules: tuple[Rule, ...]) -> None:
    dims = ({0: torch.export.Dim("n"), 2: torch.export.Dim("height", min=2, max=7)},)
    program = programs.capture(nn.AvgPool2d(7, ceil_mode=True), torch.randn(2, 6, 5, 5), dims=dims)
    assert plan(program, default_rules, device="cpu", targets=()).counts() == {"mean-pool-2d": 1}


def test_a_window_that_some_maps_exceed_is_kept(default_rules: tuple[Rule, ...]) -> None:
    dims = ({0: torch.export.Dim("n"), 2: torch.export.Dim("height", min=14, max=64)},)
    program = programs.capture(nn.AvgPool2d(7), torch.randn(2, 6, 21, 14), dims=dims)
    assert plan(program, default_rules, device="cpu", targets=()).counts() == {}


class Norms(nn.Module):
    """A layer norm alone, one after a residual and one before an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.added, self.active = nn.LayerNorm(8), nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        h = self.alone(x).sin()
        return self.added(x + h), torch.relu(self.active(h))


@pytest.mark.parametrize(
    ("device", "dtype", "alone"),
    [("cuda", torch.float16, 1), ("cuda", torch.float32, 1), ("cuda", torch.float64, 0), ("cpu", torch.float32, 0)],
    ids=str,
)
def test_a_layer_norm_that_is_left_over(
    device: str, dtype: torch.dtype, alone: int, default_rules: tuple[Rule, ...]
) -> None:
    program = programs.capture(Norms().to(dtype), torch.randn(5, 3, 8).to(dtype))
    counts = plan(program, default_rules, device=device, targets=()).counts()
    rest = {"layer-norm-fused": 1} if alone else {}
    assert counts == {"add-layer-norm": 1, "layer-norm-act": 1, **rest}
