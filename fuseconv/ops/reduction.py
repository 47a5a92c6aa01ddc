"""Helpers shared by the reductions: sample calls, error calls and the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseconv.ops.op import Sample
from fuseconv.ops.sampling import Draw


def spread(grad: Tensor, x: Tensor, dim: list[int], keepdim: bool) -> Tensor:
    """Returns a gradient with respect to the result of a reduction as a view that broadcasts with the operand.

    Args:
        grad: the gradient with respect to the result.
        x: the operand of the reduction, of any shape.
        dim: the reduced dims. An empty list stands for all dims.
        keepdim: whether the result has the reduced dims with size 1.
    """
    if keepdim or not dim or x.dim() == 0:
        return grad
    for axis in sorted(axis % x.dim() for axis in dim):
        grad = grad.unsqueeze(axis)
    return grad


def reduction_samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls `(x, dim, keepdim)` with shapes and layouts that are difficult for a reduction kernel."""
    draw = Draw(device, dtype)
    x = draw(3, 5, 7, 4)
    return [
        *(
            Sample(f"dims_{'_'.join(map(str, dim))}", (x, dim))
            for dim in ([0], [1], [2], [3], [-1], [0, 1], [1, 2], [2, 3], [0, 3], [0, 2], [1, -1], [0, 1, 2, 3], [2, 0])
        ),
        Sample("all_dims", (x, [])),
        Sample("keep_one", (x, [1], True)),
        Sample("keep_two", (x, [0, -2], True)),
        Sample("keep_all", (x, [], True)),
        Sample("scalar", (draw(), [])),
        Sample("scalar_dim", (draw(), [-1], True)),
        Sample("one_element", (draw(1, 1), [0])),
        Sample("sizes_of_one", (draw(1, 6, 1), [0, 2])),
        Sample("no_results", (draw(3, 0, 2), [0])),
        *(Sample(f"rows_{size}", (draw(3, size), [1])) for size in (2, 33, 255, 1024, 4099, 70_001)),
        *(Sample(f"columns_{size}", (draw(301, size), [0])) for size in (2, 33, 255, 1024)),
        Sample("long_columns", (draw(9001, 3), [0])),
        Sample("many_rows", (draw(4099, 5), [1])),
        Sample("many_aligned_rows", (draw(1025, 8), [1])),
        Sample("middle", (draw(5, 67, 40), [1])),
        Sample("outer_and_inner", (draw(6, 9, 64), [0, 2])),
        Sample("all_long", (draw(300_007), [0])),
        Sample("permuted", (draw.permuted(6, 33, 40), [0])),
        Sample("permuted_inner", (draw.permuted(6, 33, 40), [2])),
        Sample("permuted_two", (draw.permuted(6, 33, 40), [0, 2])),
        Sample("strided", (draw.strided(40, 36), [1])),
        Sample("strided_columns", (draw.strided(40, 36), [0])),
        Sample("padded", (draw.padded(40, 40), [1])),
        Sample("padded_both", (draw.padded(40, 40), [])),
        Sample("unaligned", (draw.unaligned(5, 128), [1])),
        Sample("unaligned_columns", (draw.unaligned(64, 40), [0])),
        Sample("expanded_rows", (draw(1, 40).expand(36, 40), [0])),
        Sample("expanded_columns", (draw(36, 1).expand(36, 40), [1])),
        Sample("expanded_all", (draw(1).expand(36, 40), [0, 1])),
        Sample("channels_last", (draw(2, 8, 5, 6).to(memory_format=torch.channels_last), [2, 3])),
    ]


def reduction_errors(device: str) -> list[Sample]:
    """Returns calls that a reduction must reject."""
    x = Draw(device, torch.float32)(2, 3)
    return [
        Sample("too_large", (x, [2]), matches=r"dim has 2, but x of shape \[2, 3\] has the dims -2 to 1"),
        Sample("too_small", (x, [-3]), matches=r"dim has -3, but x of shape \[2, 3\] has the dims -2 to 1"),
        Sample("twice", (x, [1, 0, -1]), matches="dim names the dim 1 of x twice"),
        Sample("scalar", (x[0, 0], [1]), matches=r"dim has 1, but x of shape \[\] has the dims -1 to 0"),
        Sample("integers", (x.int(), [0]), matches="x must be float64, float32, float16 or bfloat16"),
    ]
