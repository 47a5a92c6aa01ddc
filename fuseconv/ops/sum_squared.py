"""sum_squared: the sum of x^2 over the given dims."""

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
    """The sum of x^2 over the given dims.

    Args:
        x: of any shape.
        dim: the dims to reduce. An empty list reduces all dims.
        keepdim: whether the reduced dims are kept with size 1.

    Returns:
        A tensor without the reduced dims. If `keepdim` is True, the reduced dims have size 1 instead.

    Examples:
        >>> fuseconv.ops.sum_squared(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), [1])
        tensor([ 5., 25.])
    """
    return (x * x).sum(dim, keepdim)


def keep(arguments: SimpleNamespace, _: tuple[Tensor, ...]) -> Values:
    """Returns the values to save for the backward: the arguments."""
    return vars(arguments)


def backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:  # noqa: ARG001  # only x has one
    """Returns the gradient with respect to x."""
    return {"x": 2 * kept.x * spread(grad, kept.x, kept.dim, kept.keepdim)}


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    return [
        *reduction_samples(device, dtype),
        Sample("no_terms", (draw(3, 0, 2), [1])),
        Sample("no_elements", (draw(0, 2), [], True)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    return reduction_errors(device)


sum_squared = Op("sum_squared", reference, samples, errors, Gradient(keep, backward), single, decomposes=True)
