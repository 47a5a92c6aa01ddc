"""mean_abs: the mean of |x| over the given dims."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.reduction import reduction_errors, reduction_samples, spread


def reference(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """The mean of |x| over the given dims.

    Args:
        x: of any shape.
        dim: the dims to reduce. An empty list reduces all dims.
        keepdim: whether the reduced dims are kept with size 1.

    Returns:
        A tensor without the reduced dims. If `keepdim` is True, the reduced dims have size 1 instead.

    Examples:
        >>> fuseconv.ops.mean_abs(torch.tensor([[1.0, -3.0], [0.0, 2.0]]), [1])
        tensor([2., 1.])
    """
    return x.abs().mean(dim, keepdim)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the arguments, and the number of elements in each mean."""
    x, results_count = arguments.x, results[0].numel()
    return {**vars(arguments), "count": x.numel() // results_count if results_count else 1}


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:  # noqa: ARG001  # only x has one
    """Returns the gradient with respect to x, which is 0 where x is 0."""
    return {"x": kept.x.sign() * spread(grad / kept.count, kept.x, kept.dim, kept.keepdim)}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    return reduction_samples(device, dtype)


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    return reduction_errors(device)


mean_abs = Op("mean_abs", reference, samples, errors, Gradient(keep, backward), decomposes=True)
