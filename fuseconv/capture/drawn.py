"""Inputs that a model takes: drawn, tried on the original, and drawn again where it was the drawing that was wrong.

Whole numbers are drawn without knowing what they are for. A model that divides by them takes no 0, one that looks up
rows by them none beyond the last.
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
"""Runs a model on copies of its inputs."""

RANGES = ((1, 100), (1, 2), (1, 1), (0, 0))
"""What whole numbers are drawn from where 0 and 1 will not do."""

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
"""What whole numbers are drawn from where the ends of their dtype will not do, the widest first."""


def draw_taken(
    original: Call, contract: Contract, sizes: Mapping[str, int], *, seed: int, kind: Kind = "random"
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Draws inputs that the original takes, and returns them with its outputs.

    Raises:
        UnsupportedError: it fails at these sizes, whatever is drawn, and runs at others; says at which.
        UsageError: it fails at whatever sizes.
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
            except Exception:  # noqa: BLE001, S112 - the first error is the one to tell
                continue
        return inputs, failing_sizes.run(original, contract, inputs)


def with_taken_ranges(original: Call, contract: Contract, sizes: Mapping[str, int]) -> Contract:
    """Bounds integer inputs of no known range by one that the original takes, where it does not take 0 and 1."""
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
    """Draws values of a kind that the original takes, or says why it takes none.

    Whole numbers of which no range is known are as large as the original takes them.

    Returns:
        The inputs, and an empty text; or none, and what the original raised.
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
    """Returns the integer inputs of which no range is known."""
    return [spec for spec in contract.inputs if is_integer(spec) and not is_mask(spec) and not has_range(spec)]


def _narrower(contract: Contract, ranges: Sequence[tuple[int, int]]) -> Iterator[Contract]:
    """Yields contracts with other ranges for the integers of which none is known: for one of them, then for all."""
    unknown = open_integers(contract)
    for chosen in [*([spec] for spec in unknown), *([unknown] if len(unknown) > 1 else [])]:
        for low, high in ranges:
            inputs = tuple(_bounded(spec, low, high) if spec in chosen else spec for spec in contract.inputs)
            yield replace(contract, inputs=inputs)


def _bounded(spec: TensorSpec, low: int, high: int) -> TensorSpec:
    info = torch.iinfo(torch_dtype(spec.dtype))
    return replace(spec, low=max(low, info.min), high=min(high, info.max))
