"""sum_squared: the sum of x^2 over some dims."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.autocast import single
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.reduction import reduction_errors, reduction_samples, spread
from fuseconv.ops.sampling import Draw


def reference(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """(x * x).sum(dim), x of any shape; over all dims if `dim` is empty.

    The dims' sizes become 1 if `keepdim`, else they go.
    """
    return (x * x).sum(dim, keepdim)


def keep(arguments: SimpleNamespace, _: tuple[Tensor, ...]) -> Values:
    """The arguments."""
    return vars(arguments)


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:  # noqa: ARG001  # there is one
    """The gradient of x."""
    return {"x": 2 * kept.x * spread(grad, kept.x, kept.dim, kept.keepdim)}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Calls that the op must serve."""
    draw = Draw(device, dtype)
    return [
        *reduction_samples(device, dtype),
        Sample("no_terms", (draw(3, 0, 2), [1])),
        Sample("no_elements", (draw(0, 2), [], True)),
    ]


def errors(device: str) -> list[Sample]:
    """Calls that the op must refuse."""
    return reduction_errors(device)


sum_squared = Op("sum_squared", reference, samples, errors, Gradient(keep, backward), single, decomposes=True)
