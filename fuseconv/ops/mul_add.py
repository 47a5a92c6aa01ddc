"""mul_add: a * b + c with broadcasting."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The product a * b plus c.

    Args:
        a: of any shape.
        b: of any shape that broadcasts with the shape of a, with the dtype of a.
        c: of any shape that broadcasts with the shape of a * b, with the dtype of a.

    Returns:
        A tensor of the broadcast shape.

    Examples:
        >>> fuseconv.ops.mul_add(torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 4.0]), torch.tensor(1.0))
        tensor([[4., 5.],
                [7., 9.]])
    """
    return a * b + c


def keep(arguments: SimpleNamespace, _: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the shapes, and each factor if the other one requires a gradient."""
    a, b, c = arguments.a, arguments.b, arguments.c
    return {
        "a": a if b.requires_grad else None,
        "b": b if a.requires_grad else None,
        "a_sizes": a.shape,
        "b_sizes": b.shape,
        "c_sizes": c.shape,
    }


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    """Returns the gradients with respect to a, b and c."""
    return {
        "a": (grad * kept.b).sum_to_size(kept.a_sizes) if "a" in needed else None,
        "b": (grad * kept.a).sum_to_size(kept.b_sizes) if "b" in needed else None,
        "c": grad.sum_to_size(kept.c_sizes) if "c" in needed else None,
    }


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    calls = [Sample(name, tensors) for name, tensors in draw.broadcast_tuples(3)]
    return [
        *calls,
        Sample("addend_is_larger", (draw(6, 1), draw(5), draw(4, 6, 5))),
        Sample("addend_decides_layout", (draw(1, 5), draw(6, 1), draw.permuted(6, 5))),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    return [
        Sample("factors", (draw(3), draw(4), draw(3)), matches=r"a of shape \[3\] and b of shape \[4\]"),
        Sample("addend", (draw(3), draw(3), draw(2)), matches=r"a \* b of shape \[3\] and c of shape \[2\]"),
        Sample("dtypes", (draw(3), draw(3), draw(3).half()), matches="c and a must have the same dtype"),
    ]


mul_add = Op("mul_add", reference, samples, errors, Gradient(keep, backward), decomposes=True)
