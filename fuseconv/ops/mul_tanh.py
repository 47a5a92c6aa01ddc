"""mul_tanh: tanh(a * b) with broadcasting."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import activate_backward
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(a: Tensor, b: Tensor) -> Tensor:
    """tanh(a * b).

    Args:
        a: of any shape.
        b: of any shape that broadcasts with the shape of a, with the dtype of a.

    Returns:
        A tensor of the broadcast shape.

    Examples:
        >>> fuseconv.ops.mul_tanh(torch.tensor([0.0, 1.0]), torch.tensor([0.5]))
        tensor([0.0000, 0.4621])
    """
    return torch.tanh(a * b)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward.

    These are the result, the shapes, and each factor if the other factor requires a gradient.
    """
    a, b = arguments.a, arguments.b
    return {
        "y": results[0],
        "a": a if b.requires_grad else None,
        "b": b if a.requires_grad else None,
        "a_sizes": a.shape,
        "b_sizes": b.shape,
    }


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """Returns the gradients with respect to a and b."""
    grad = activate_backward(grad, kept.y, "tanh")
    return {
        "a": (grad * kept.b).sum_to_size(kept.a_sizes) if "a" in needed else None,
        "b": (grad * kept.a).sum_to_size(kept.b_sizes) if "b" in needed else None,
    }


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [Sample(name, tensors) for name, tensors in draw.broadcast_tuples(2)]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    return [
        Sample("sizes", (draw(2, 3), draw(2)), matches=r"a of shape \[2, 3\] and b of shape \[2\] cannot be broadcast"),
        Sample("dtypes", (draw(3), draw(3).half()), matches="b and a must have the same dtype"),
        Sample("booleans", (draw(3) > 0, draw(3) > 0), matches="a must be float64, float32, float16 or bfloat16"),
    ]


mul_tanh = Op("mul_tanh", reference, samples, errors, Gradient(keep, backward), decomposes=True)
