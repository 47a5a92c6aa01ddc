"""Group norm in ONNX: PyTorch's own op and the body of ours, in the precision of the model."""

import pytest
import small_bundle
import torch
from torch import nn
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.targets import TARGETS, Context
from fuseconv.tolerance import compare


class Norms(nn.Module):
    """A group norm of 32 groups with weight and bias, without a weight, without both."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.weight, self.bias = (nn.Parameter(torch.randn(64)) for _ in range(2))

    def forward(self, x):
        return self.norm(x, self.weight, self.bias), self.norm(x, None, self.bias), self.norm(x, None, None)


FORMS = {
    "aten": lambda x, weight, bias: F.group_norm(x, 32, weight, bias),
    "ours": lambda x, weight, bias: ops.group_norm_act(x, 32, weight, bias),
    "ours, silu": lambda x, weight, bias: ops.group_norm_act(x, 32, weight, bias, 1e-5, "silu"),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_computes_in_its_inputs_precision(form, dtype, tmp_path):
    torch.manual_seed(0)
    module = Norms(FORMS[form]).to(dtype)
    name = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16"}[dtype]
    program = small_bundle.program(module, (f"x={name}[batch:1..4,64,5,side:2..64]",))
    runner = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    for sizes in ((1, 64, 5, 64), (3, 64, 5, 7)):  # 64 twice: a size like that of the channels is no channel
        x = torch.randn(sizes, dtype=torch.float64).to(dtype)
        with torch.no_grad():
            expected, truth = module(x), Norms.forward(module.double(), x.double())
            module.to(dtype)
        for result, original, true in zip(runner(x), expected, truth, strict=True):
            assert compare(result, original, true).ok
