"""Layers that vanish into their neighbours: batch norm, padding, group norm, last activations."""

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


def norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> nn.Module:
    """Gives a batch norm statistics and factors that are not those it starts with."""
    for tensor in (*module.parameters(), module.get_buffer("running_mean"), module.get_buffer("running_var")):
        tensor.data.uniform_(0.5, 2)
    return module


def image(channels: int = 6) -> Tensor:
    return torch.randn(2, channels, 7, 7)


MLP = "fuseconv.mlp.default"
MUL_ADD = "fuseconv.mul_add.default"

TABLE = {
    "group norm, one axis": (lambda: GroupNorm(3, 6, False), image(), ["aten.group_norm.default"]),
    "group norm, axes": (lambda: GroupNorm(3, 6, True), image(), ["aten.group_norm.default"]),
    "zero pad": (lambda: nn.Sequential(nn.ZeroPad2d(2), nn.Conv2d(6, 4, 3)), image(), ["aten.conv2d.default"]),
    "pad on padding": (lambda: Padded((1, 1, 2, 2), padding=1, stride=2), image(3), ["aten.conv2d.default"]),
    "zero pad 1d": (
        lambda: nn.Sequential(nn.ConstantPad1d(2, 0.0), nn.Conv1d(6, 4, 3)),
        torch.randn(2, 6, 9),
        ["aten.conv1d.default"],
    ),
    "one side": (lambda: Padded((0, 1, 0, 1)), image(3), ["aten.pad.default", "aten.conv2d.default"]),
    "a crop": (lambda: Padded((-1, -1, -1, -1)), image(3), ["aten.pad.default", "aten.conv2d.default"]),
    "reflected": (
        lambda: nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(6, 4, 3)),
        image(),
        ["aten.pad.default", "aten.conv2d.default"],
    ),
    "batch norm alone": (lambda: norm(nn.BatchNorm2d(6)), image(), [MUL_ADD]),
    "batch norm of sequences": (lambda: norm(nn.BatchNorm1d(6)), torch.randn(2, 6, 9), [MUL_ADD]),
    "batch norm before a padded conv": (
        lambda: nn.Sequential(norm(nn.BatchNorm2d(6)), nn.Conv2d(6, 4, 3, padding=1)),
        image(),
        [MUL_ADD, "aten.conv2d.default"],
    ),
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
