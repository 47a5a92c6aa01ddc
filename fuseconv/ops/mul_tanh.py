"""mul_tanh: tanh(a * b), broadcasting."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import activate_backward
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(a: Tensor, b: Tensor) -> Tensor:
    """tanh(a * b); the shapes of a and b broadcast."""
    return torch.tanh(a * b)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """The result, and each factor if the other's gradient is wanted."""
    a, b = arguments.a, arguments.b
    return {
        "y": results[0],
        "a": a if b.requires_grad else None,
        "b": b if a.requires_grad else None,
        "a_sizes": a.shape,
        "b_sizes": b.shape,
    }


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """The gradients of a and b."""
    grad = activate_backward(grad, kept.y, "tanh")
    return {
        "a": (grad * kept.b).sum_to_size(kept.a_sizes) if "a" in needed else None,
        "b": (grad * kept.a).sum_to_size(kept.b_sizes) if "b" in needed else None,
    }


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Calls that the op must serve."""
    draw = Draw(device, dtype)
    return [Sample(name, tensors) for name, tensors in draw.broadcast_tuples(2)]


def errors(device: str) -> list[Sample]:
    """Calls that the op must refuse."""
    draw = Draw(device, torch.float32)
    return [
        Sample("sizes", (draw(2, 3), draw(2)), matches=r"a of shape \[2, 3\] and b of shape \[2\] cannot be broadcast"),
        Sample("dtypes", (draw(3), draw(3).half()), matches="b and a must have the same dtype"),
        Sample("booleans", (draw(3) > 0, draw(3) > 0), matches="a must be float64, float32, float16 or bfloat16"),
    ]


mul_tanh = Op("mul_tanh", reference, samples, errors, Gradient(keep, backward), decomposes=True)
