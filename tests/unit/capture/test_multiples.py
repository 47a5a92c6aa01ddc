"""Dims of multiples: from archives that have them, into every format, and found by trying."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.functions import IMAGES, Function, down_and_up, equal, onnx_model, windows
from support.subjects import assert_same
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.errors import UnsupportedError
from fuseconv.sizes.multiples import accepted
from fuseconv.sources import read
from fuseconv.targets import TARGETS, Context


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")  # torch's own
@pytest.mark.parametrize("function", [down_and_up, windows])
def test_multiples_go_into_every_format(function: Callable[..., Tensor], tmp_path: Path) -> None:
    program = small_bundle.program(Function(function).eval(), (IMAGES,))
    context = Context(tmp_path)
    TARGETS["onnx"].write(program, tmp_path, context)
    graph = onnx_model(tmp_path).graph
    found, result = (
        [d.dim_param or d.dim_value for d in v[0].type.tensor_type.shape.dim] for v in (graph.input, graph.output)
    )
    assert found == ["batch", 4, "height", "width"]
    assert result == ["batch", 4, "height", "width"]
    # As the compiler of AOTInductor gets it, in a process of its own.
    saved = tmp_path / TARGETS["export"].write(program, tmp_path, context)
    decomposed = torch.export.load(str(saved)).run_decompositions({}).module()
    onnx_runner = TARGETS["onnx"].load(tmp_path / "model.onnx", "cpu")
    for height, width in ((4, 64), (32, 8), (12, 24)):
        (x,) = draw(program.contract, {"batch": 2, "height": height, "width": width}, seed=0)
        expected = (function(None, x),)
        equal(decomposed(x), expected)
        equal(onnx_runner(x), expected)


class Halved(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x + nn.functional.interpolate(nn.functional.avg_pool1d(y, 2), scale_factor=2.0)


def test_archives_with_dims_of_multiples(tmp_path: Path) -> None:
    length = 2 * torch.export.Dim("half", min=2, max=32)
    examples, dims = (torch.ones(1, 3, 10), torch.ones(1, 3, 10)), ({2: length}, {2: length})
    torch.export.save(torch.export.export(Halved(), examples, dynamic_shapes=dims), tmp_path / "model.pt2")
    subject = read(tmp_path / "model.pt2")
    program = capture(subject)
    assert [str(spec) for spec in program.contract.inputs] == ["x=f32[1,3,dim0:4..64:2]", "y=f32[1,3,dim0:4..64:2]"]
    assert_same(subject, program)


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        split = (
            x.view(batch, channels, height // 4, 4, width // 6, 6).permute(0, 2, 4, 3, 5, 1).reshape(-1, 24, channels)
        )
        return nn.functional.normalize(split).view(batch, height // 4, width // 6, 24, channels)


class Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, 2, x.shape[3]).sum(2)


GUARDED = {
    "multiples of two numbers": (Windows(), "dim0:2..2147483647,3,dim1:8..2147483644:4,dim2:12..2147483646:6"),
    "not of the smallest": (Pairs(), "dim0:2..2147483647,3,dim1:4..2147483646:2,dim2:2..2147483647"),
    "free": (nn.GELU(), "dim0:2..2147483647,3,dim1:2..2147483647,dim2:2..2147483647"),
}


@pytest.mark.parametrize("name", GUARDED)
def test_archives_say_which_sizes_their_guards_allow(name: str, tmp_path: Path) -> None:
    module, expected = GUARDED[name]
    dims = dict.fromkeys((0, 2, 3), torch.export.Dim.AUTO)
    exported = torch.export.export(module, (torch.randn(2, 3, 16, 24),), dynamic_shapes=(dims,))
    torch.export.save(exported, tmp_path / "model.pt2")
    subject = read(tmp_path / "model.pt2")
    assert str(subject.contract.inputs[0]).endswith(f"=f32[{expected}]")
    assert_same(subject, capture(subject))


def test_archives_that_no_multiples_will_do_for_say_the_guard(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + 1 if x.shape[0] % 2 == 1 else x

    dims = ({0: torch.export.Dim.AUTO},)
    torch.export.save(torch.export.export(Odd(), (torch.randn(5, 3),), dynamic_shapes=dims), tmp_path / "model.pt2")
    subject = read(tmp_path / "model.pt2")
    with pytest.raises(UnsupportedError, match=r"x\.size|dim0") as caught:
        capture(subject)
    assert caught.value.where == "GraphModule"


ACCEPTED = {
    "one number for all": ("x=f32[h:8..64,w:8..64]", lambda h, w: h % 4 == 0 == w % 4, ["h:8..64:4", "w:8..64:4"]),
    "a number for each": ("x=f32[h:8..64,w:8..64]", lambda h, w: h % 4 == 0 == w % 6, ["h:8..64:4", "w:12..60:6"]),
    "one dim alone": ("x=f32[h:8..64,w:8..64]", lambda h, w: w % 8 == 0, ["w:8..64:8"]),
    "more than was asked for": ("x=f32[h:8..64:2,w:8..64:3]", lambda h, w: h % 8 == 0, ["h:8..64:8"]),
    "beside a small range": ("x=f32[n:1..8,h:64..512:32]", lambda n, h: h % 64 == 0, ["h:64..512:64"]),
    "none in the range": ("x=f32[h:9..15,w:8..64]", lambda h, w: h % 64 == 0, []),
    "none at all": ("x=f32[h:8..64,w:8..64]", lambda h, w: False, []),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_least_steps_are_found_with_which_a_model_runs(name: str) -> None:
    text, takes, expected = ACCEPTED[name]
    found = accepted(Contract(parse_inputs([text]), ()), lambda contract: takes(*example_sizes(contract).values()))
    assert [str(dim) for dim in found] == expected
