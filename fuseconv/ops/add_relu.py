"""add_relu: relu(a + b) with broadcasting."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.activation import activate_backward
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(a: Tensor, b: Tensor) -> Tensor:
    """relu(a + b).

    Args:
        a: of any shape.
        b: of any shape that broadcasts with the shape of a, with the dtype of a.

    Returns:
        A tensor of the broadcast shape.

    Examples:
        >>> fuseconv.ops.add_relu(torch.tensor([[1.0, -2.0]]), torch.tensor([1.0, 1.0]))
        tensor([[2., 0.]])
    """
    return torch.relu(a + b)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the result, which determines relu's derivative, and the shapes."""
    return {"y": results[0], "a_sizes": arguments.a.shape, "b_sizes": arguments.b.shape}


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """Returns the gradients with respect to a and b."""
    grad = activate_backward(grad, kept.y, "relu")
    return {
        "a": grad.sum_to_size(kept.a_sizes) if "a" in needed else None,
        "b": grad.sum_to_size(kept.b_sizes) if "b" in needed else None,
    }


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [Sample(name, tensors) for name, tensors in draw.broadcast_tuples(2)]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    return [
        Sample("sizes", (draw(3), draw(4)), matches=r"a of shape \[3\] and b of shape \[4\] cannot be broadcast"),
        Sample("dtypes", (draw(3), draw(3).double()), matches="b and a must have the same dtype"),
        Sample("integers", (draw(3).int(), draw(3).int()), matches="a must be float64, float32, float16 or bfloat16"),
    ]


add_relu = Op("add_relu", reference, samples, errors, Gradient(keep, backward), decomposes=True)
