"""Group norm in ONNX: PyTorch's op and the function body of ours, in the precision of the model."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.targets import TARGETS, Context


class Norms(nn.Module):
    """A group norm of 32 groups with weight and bias, without a weight, without both."""

    def __init__(self, norm: Callable[..., Tensor]) -> None:
        super().__init__()
        self.norm = norm
        self.weight, self.bias = (nn.Parameter(torch.randn(64)) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.norm(x, self.weight, self.bias), self.norm(x, None, self.bias), self.norm(x, None, None)


FORMS = {
    "aten": lambda x, weight, bias: F.group_norm(x, 32, weight, bias),
    "ours": lambda x, weight, bias: ops.group_norm_act(x, 32, weight, bias),
    "ours, silu": lambda x, weight, bias: ops.group_norm_act(x, 32, weight, bias, 1e-5, "silu"),
}


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_computes_in_its_inputs_precision(form: str, dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Norms(FORMS[form]).to(dtype)
    name = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16"}[dtype]
    program = small_bundle.program(module, (f"x={name}[batch:1..4,64,5,side:2..64]",))
    runner = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    for sizes in ((1, 64, 5, 64), (3, 64, 5, 7)):  # 64 twice: a size like that of the channels is no channel
        x = torch.randn(sizes, dtype=torch.float64).to(dtype)
        with torch.no_grad():
            expected, fp64 = module(x), Norms.forward(module.double(), x.double())
            module.to(dtype)
        for result, original, true in zip(runner(x), expected, fp64, strict=True):
            assert compare(result, original, true).ok


class Blocks(nn.Module):
    """As in U-Nets: convolution, norm, activation, convolution. Of a row of zeros all of a group are nearly equal."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.before, self.norm = nn.Conv2d(4, 16, 3, padding=1), norm
        self.after = nn.Conv2d(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(F.silu(self.norm(self.before(x))))


NORMS = {
    "group norm": lambda: nn.GroupNorm(8, 16),
    "group norm of channels": lambda: nn.GroupNorm(16, 16),
    "instance norm": lambda: nn.InstanceNorm2d(16, affine=True),
    "instance norm without weights": lambda: nn.InstanceNorm2d(16),
    "instance norm of running moments": lambda: nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_groups_of_nearly_equal_values_are_exact(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Blocks(NORMS[name]()).eval()
    program = small_bundle.program(module, ("x=f32[batch:1..8,4,12,10]",))
    runner = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.randn(6, 4, 12, 10)
    x[::2] = 0
    x[1] *= 16
    x[3] = x[3] * 1e-4 + 5
    with torch.no_grad():
        expected, fp64 = module(x), run_in_float64(program, (x,))[0]
    (result,) = runner(x)
    for row in range(len(x)):
        row_of_output = compare(result[row], expected[row], fp64[row])
        assert row_of_output.ok, (row, row_of_output)


@pytest.mark.parametrize("form", ["aten", "ours"])
def test_a_group_may_be_a_whole_image(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)

    class Norm(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.group_norm(x, 1) if form == "aten" else ops.group_norm_act(x, 1)

    program = small_bundle.program(Norm(), ("x=f32[batch:1..4,64,64,side:2..64]",))
    runner = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.randn(1, 64, 64, 64).relu()  # a sum of positive numbers loses most
    (result,) = runner(x)
    assert compare(result, F.group_norm(x, 1), F.group_norm(x.double(), 1)).ok
