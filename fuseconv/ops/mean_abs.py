"""mean_abs: the mean of |x| over some dims."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.reduction import reduction_errors, reduction_samples, spread


def reference(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """x.abs().mean(dim), x of any shape; over all dims if `dim` is empty.

    The dims' sizes become 1 if `keepdim`, else they go.
    """
    return x.abs().mean(dim, keepdim)


def keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    """The arguments, and how many elements a mean is over."""
    x, results_count = arguments.x, results[0].numel()
    return {**vars(arguments), "count": x.numel() // results_count if results_count else 1}


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:  # noqa: ARG001  # there is one
    """The gradient of x; 0 where x is 0."""
    return {"x": kept.x.sign() * spread(grad / kept.count, kept.x, kept.dim, kept.keepdim)}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Calls that the op must serve."""
    return reduction_samples(device, dtype)


def errors(device: str) -> list[Sample]:
    """Calls that the op must refuse."""
    return reduction_errors(device)


mean_abs = Op("mean_abs", reference, samples, errors, Gradient(keep, backward), decomposes=True)
