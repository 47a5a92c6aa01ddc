"""Reductions over many elements in ONNX Runtime on a CPU, against PyTorch and float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import TOLERANCES, compare
from fuseconv.targets import TARGETS, Context

Functions = Mapping[str, Callable[[Tensor], Tensor]]

WHOLE = (1, 2, 3)
IMAGES: Functions = {
    "mean": lambda x: x.mean(WHOLE),
    "mean of all": lambda x: x.mean(),
    "mean of positions": lambda x: x.mean((2, 3), keepdim=True),
    "sum": lambda x: x.sum(WHOLE),
    "sum of all but channels": lambda x: x.sum((0, 2, 3)),
    "sum of magnitudes": lambda x: torch.linalg.vector_norm(x, 1, WHOLE),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, WHOLE, True),
    "norm of all": lambda x: x.norm(),
    "norm of order 3": lambda x: torch.linalg.vector_norm(x, 3, WHOLE),
    "norm of matrices": torch.linalg.matrix_norm,
    "var": lambda x: x.var(WHOLE),
    "var of all": lambda x: x.var(),
    "std": lambda x: x.std((2, 3), keepdim=True),
    "logsumexp": lambda x: x.logsumexp(WHOLE),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer norm with weight": lambda x: F.layer_norm(x, x.shape[1:], x[0], x[0] + 1),
    "rms norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "normalize": lambda x: F.normalize(x.flatten(1)),
    "loss": lambda x: F.mse_loss(x, torch.zeros_like(x)),
}
ROWS: Functions = {
    "mean": lambda x: x.mean(-1),
    "sum": lambda x: x.sum(-1, keepdim=True),
    "norm": lambda x: x.norm(dim=-1),
    "var": lambda x: x.var(-1, keepdim=True),
    "std": lambda x: x.std(-1),
    "logsumexp": lambda x: (x * 9).logsumexp(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cosine": lambda x: F.cosine_similarity(x, x + 1, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "columns": lambda x: x.T.mean(0),
    "columns between": lambda x: torch.stack((x, x + 1), -1).square().sum(1),
    "the op mean_abs": lambda x: ops.mean_abs(x, [-1]),
    "the op sum_squared": lambda x: ops.sum_squared(x, [-1]),
    "the op rms_norm": lambda x: ops.rms_norm(x, torch.ones(x.shape[-1]), 1e-6),
    "the op layer_norm_act": lambda x: ops.layer_norm_act(x, torch.ones(x.shape[-1]), None, 1e-5, "relu"),
    "the op group_norm_act": lambda x: ops.group_norm_act(x[:, None], 1),
}
PROGRAMS: Mapping[str, tuple[str, Functions, tuple[int, ...]]] = {
    "images": ("x=f32[batch:1..4,3,320,256]", IMAGES, (2, 3, 320, 256)),
    "images of dynamic size": ("x=f32[batch:1..4,3,h:2..512,w:2..512]", IMAGES, (2, 3, 320, 255)),
    "rows": ("x=f32[batch:1..4,196608]", ROWS, (2, 196608)),
    "rows that blocks do not divide": ("x=f32[batch:1..4,196613]", ROWS, (2, 196613)),
    "rows of dynamic size": ("x=f32[batch:1..4,n:2..200000]", ROWS, (2, 196608)),
}


class Reductions(nn.Module):
    """The results of several functions of the same input."""

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(function(x) for function in self.functions.values())


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_reduction_over_many_elements_has_the_digits_of_its_dtype(name: str, tmp_path: Path) -> None:
    spec, functions, shape = PROGRAMS[name]
    module = Reductions(functions)
    program = small_bundle.program(module, (spec,))
    run = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.1  # a sum of positive numbers loses most
    with torch.no_grad():
        expected, fp64s = module(x), run_in_float64(program, (x,))
    for function, result, original, fp64 in zip(functions, run(x), expected, fp64s, strict=True):
        assert compare(result, original, fp64).ok, function
        error = (result - fp64).square().mean().sqrt() / fp64.square().mean().sqrt()
        assert error <= TOLERANCES[torch.float32].rtol, (function, float(error))
