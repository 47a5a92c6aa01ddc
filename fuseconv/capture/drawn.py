"""Generates random inputs that the original model accepts.

The contract does not say how a model uses an integer input. A model that divides by the integer rejects 0, and a model
that indexes a table with the integer rejects values beyond the last row. If the model rejects its inputs, integers from
other ranges are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fuseconv.contract.inputs import draw, torch_dtype
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import (
    Kind,
    has_range,
    is_integer,
    is_mask,
)
from fuseconv.errors import FuseconvError, is_out_of_memory
from fuseconv.sizes import failing_sizes

Call = Callable[..., tuple[Tensor, ...]]
"""A function that runs a model on copies of its inputs."""

RANGES = ((1, 100), (1, 2), (1, 1), (0, 0))
"""The ranges of random integers, both ends included, to try in this order if the model rejects 0 and 1."""

WIDE_RANGES = (
    (-(2**31), 2**31 - 1),
    (-128, 127),
    (1, 2**31 - 1),
    (0, 127),
    (1, 127),
    (0, 31),
    (0, 7),
    (1, 7),
    (-2, 2),
    (0, 1),
)
"""The ranges of integers, both ends included, to try in this order if the model rejects the limits of the dtype."""


def draw_taken(
    original: Call, contract: Contract, sizes: Mapping[str, int], *, seed: int, kind: Kind = "random"
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Generates random inputs that the original accepts, and returns these inputs and the original's outputs.

    Args:
        original: the original model.
        contract: the contract that the inputs must satisfy.
        sizes: the size of every dim.
        seed: the seed of the random values.
        kind: the kind of values, which `contract.values.values` describes.

    Raises:
        UnsupportedError: the model fails at these sizes for all values, but runs at other sizes. The error names the
            sizes.
        UsageError: the model fails at all sizes.
    """
    inputs = draw(contract, sizes, seed=seed, kind=kind)
    try:
        return inputs, original(*inputs)
    except FuseconvError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        for other in _narrower(contract, RANGES):
            again = draw(other, sizes, seed=seed, kind=kind)
            try:
                return again, original(*again)
            except Exception:  # noqa: BLE001, S112 - the first error is the one to report
                continue
        return inputs, failing_sizes.run(original, contract, inputs)


def with_taken_ranges(original: Call, contract: Contract, sizes: Mapping[str, int]) -> Contract:
    """Returns the contract with a range for integer inputs if the original model rejects the values 0 and 1.

    The contract is returned unchanged if the original accepts its inputs, or rejects all ranges in `RANGES`. The
    original is called only if there are integer inputs without a range.
    """
    if not open_integers(contract):
        return contract
    for one in (contract, *_narrower(contract, RANGES)):
        try:
            original(*draw(one, sizes, seed=0))
        except FuseconvError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise
            continue
        return one
    return contract


def draw_special(
    original: Call, contract: Contract, sizes: Mapping[str, int], *, seed: int, kind: Kind
) -> tuple[tuple[Tensor, ...], str]:
    """Generates inputs with values of a special kind, and checks that the original accepts them.

    If the original rejects the kind `integers`, the ranges in `WIDE_RANGES` are tried for integer inputs without a
    range.

    Returns:
        The inputs and an empty string. If the original rejects all inputs: an empty tuple and the text of its first
        error.
    """
    ranges = WIDE_RANGES if kind == "integers" else ()
    why = ""
    for one in (contract, *_narrower(contract, ranges)):
        inputs = draw(one, sizes, seed=seed, kind=kind)
        try:
            original(*inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            why = why or f"the model rejects these values: {type(error).__name__}: {failing_sizes.first_line(error)}"
            continue
        return inputs, ""
    return (), why


def open_integers(contract: Contract) -> list[TensorSpec]:
    """Returns the integer inputs that have no range."""
    return [spec for spec in contract.inputs if is_integer(spec) and not is_mask(spec) and not has_range(spec)]


def _narrower(contract: Contract, ranges: Sequence[tuple[int, int]]) -> Iterator[Contract]:
    """Yields contracts that add a range to integer inputs without a range: to one input at a time, then to all."""
    unknown = open_integers(contract)
    for chosen in [*([spec] for spec in unknown), *([unknown] if len(unknown) > 1 else [])]:
        for low, high in ranges:
            inputs = tuple(_bounded(spec, low, high) if spec in chosen else spec for spec in contract.inputs)
            yield replace(contract, inputs=inputs)


def _bounded(spec: TensorSpec, low: int, high: int) -> TensorSpec:
    info = torch.iinfo(torch_dtype(spec.dtype))
    return replace(spec, low=max(low, info.min), high=min(high, info.max))
