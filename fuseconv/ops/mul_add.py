"""mul_add: a * b + c, broadcasting."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Returns a * b + c."""
    return a * b + c


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Calls that the op must serve."""
    draw = Draw(device, dtype)
    calls = [Sample(name, tensors) for name, tensors in draw.broadcast_tuples(3)]
    return [
        *calls,
        Sample("addend_is_larger", (draw(6, 1), draw(5), draw(4, 6, 5))),
        Sample("addend_decides_layout", (draw(1, 5), draw(6, 1), draw.permuted(6, 5))),
    ]


def errors(device: str) -> list[Sample]:
    """Calls that the op must refuse."""
    draw = Draw(device, torch.float32)
    return [
        Sample("factors", (draw(3), draw(4), draw(3)), matches=r"a of shape \[3\] and b of shape \[4\]"),
        Sample("addend", (draw(3), draw(3), draw(2)), matches=r"a \* b of shape \[3\] and c of shape \[2\]"),
        Sample("dtypes", (draw(3), draw(3), draw(3).half()), matches="c and a must have the same dtype"),
    ]


mul_add = Op("mul_add", reference, samples, errors)
