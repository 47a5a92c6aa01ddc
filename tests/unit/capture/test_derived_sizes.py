"""Sizes of intermediate tensors are computed from those of the inputs, so that reading them prevents no fusion."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn
from torch.nn import functional

import fuseconv
from fuseconv.graph.nodes import op_name
from fuseconv.matching.plan import plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.targets import TARGETS, Context

IMAGE = "x=f32[batch:1..4,3,height:9..40,width:9..40]"


class Pyramid(nn.Module):
    """Convolutions with batch norm and ReLU at three sizes, each enlarged to the size of the one before."""

    def __init__(self) -> None:
        super().__init__()
        channels = (3, 4, 4, 4)
        self.levels = nn.ModuleList(
            nn.Sequential(nn.Conv2d(k, n, 3, 2, 1), nn.BatchNorm2d(n), nn.ReLU(inplace=True))
            for k, n in pairwise(channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for level in self.levels:
            maps.append(level(maps[-1]))
        up = maps[-1]
        for larger in maps[-2:0:-1]:
            up = larger + functional.interpolate(up, size=larger.shape[2:], mode="bilinear")
        return functional.interpolate(up, size=x.shape[2:], mode="nearest")


class Function(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def reads(program: Program) -> list[torch.fx.Node]:
    """Returns the nodes that read the size of an intermediate tensor."""
    return [
        node
        for node in program.exported.graph.nodes
        if op_name(node.target) in ("aten.sym_size.int", "aten.sym_numel.default") and node.args[0].op != "placeholder"
    ]


def pooled(x: Tensor) -> Tensor:
    y = functional.avg_pool1d(x, 3, 2)
    return y.new_ones(y.shape[-1] * 2)


def joined(x: Tensor, y: Tensor) -> Tensor:
    both = torch.cat([x, y], 1)
    return both.new_ones(both.shape[1], both.numel())


def multiple(x: Tensor) -> Tensor:
    y = functional.avg_pool1d(x, 2)
    return y.new_full((y.shape[-1],), 3.0)


def cut(x: Tensor) -> Tensor:
    y = torch.exp(x[:, 1:])
    return y.flatten().new_zeros(y.shape[1] // 3 + 1, y.shape[0] * y.shape[1])


FUNCTIONS: list[tuple[Any, tuple[str, ...], list[tuple[tuple[int, ...], ...]]]] = [
    (pooled, ("x=f32[2,n:3..40]",), [((2, 3),), ((2, 4),), ((2, 40),)]),
    (joined, ("x=f32[b:1..4,m:1..9]", "y=f32[b,n:1..9]"), [((1, 1), (1, 9)), ((4, 9), (4, 2))]),
    (multiple, ("x=f32[2,n:8..64:8]",), [((2, 8),), ((2, 64),)]),
    (cut, ("x=f32[b:1..4,n:2..9]",), [((1, 2),), ((4, 9),), ((3, 4),)]),
]


@pytest.mark.parametrize("target", ["export", "torchscript", "onnx"])
@pytest.mark.parametrize(("function", "inputs", "shapes"), FUNCTIONS, ids=[one[0].__name__ for one in FUNCTIONS])
def test_sizes_are_those_of_the_tensor(
    function: Any, inputs: tuple[str, ...], shapes: list[tuple[tuple[int, ...], ...]], target: str, tmp_path: Path
) -> None:
    module = Function(function).eval()
    program = small_bundle.program(module, inputs)
    assert not reads(program)
    run = TARGETS[target].load(tmp_path / TARGETS[target].write(program, tmp_path, Context(tmp_path)), "cpu")
    for shape in shapes:
        given = [torch.randn(one) for one in shape]
        torch.testing.assert_close(run(*given), (module(*given),))


def test_a_size_that_depends_on_values_is_read_from_its_tensor() -> None:
    def chosen(x: Tensor) -> Tensor:
        found = x[x > 0]
        return found.new_ones(found.shape[0])

    program = small_bundle.program(Function(chosen), ("x=f32[n:2..9]",))
    assert any(isinstance(node.meta.get("val"), torch.SymInt) for node in program.exported.graph.nodes)


def test_a_read_of_a_size_prevents_no_fusion() -> None:
    program = small_bundle.program(Pyramid().eval(), (IMAGE,))
    counts = plan(program, load_rules(), device="cpu", targets=["export"]).counts()
    assert counts["conv2d-batch-norm"] == 3
    assert counts["conv2d-act"] == 3


def test_nor_does_it_in_a_module_to_train_on() -> None:
    def activated(x: Tensor) -> Tensor:
        y = functional.relu(functional.conv2d(x, weight, stride=2))
        return functional.interpolate(functional.max_pool2d(y, 2), size=y.shape[2:])

    weight = torch.randn(4, 3, 3, 3)
    height = torch.export.Dim("height", min=9, max=40)
    fused = fuseconv.fuse(Function(activated), (torch.randn(2, 3, 17, 16),), dynamic_shapes=(({2: height},),))
    assert fused.plan.counts() == {"conv2d-act": 1}


def test_a_size_that_becomes_constant_later() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(3, 4, 3, stride=2)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = torch.relu(self.convolution(x))
            return y.new_ones(y.shape[2] + 1), x.view(2, 3, 17) + 1

    model, x = Constant(), torch.randn(2, 3, 17)
    ones, more = fuseconv.fuse(model, (x,), dynamic_shapes=({2: torch.export.Dim.AUTO},))(x)
    assert ones.tolist() == [1.0] * 9
    torch.testing.assert_close(more, x + 1)
