"""Inputs that a model takes: drawn, tried on the original, and drawn again where it was the drawing that was wrong.

Whole numbers are drawn without knowing what they are for. A model that divides by them takes no 0, one that looks up
rows by them none beyond the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from fuseconv import failing_sizes
from fuseconv.contract import Contract, TensorSpec
from fuseconv.errors import FuseconvError, is_out_of_memory
from fuseconv.inputs import Kind, draw

Call = Callable[..., tuple[Tensor, ...]]
"""Runs a model on copies of its inputs."""

_INTEGERS = ("i64", "i32", "i16", "i8", "u8")

RANGES = ((1, 2), (1, 1), (0, 0))
"""What whole numbers are drawn from where 0 and 1 will not do."""


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
        for other in _narrower(contract):
            again = draw(other, sizes, seed=seed, kind=kind)
            try:
                return again, original(*again)
            except Exception:  # noqa: BLE001, S112 - the first error is the one to tell
                continue
        return inputs, failing_sizes.run(original, contract, inputs)


def with_taken_ranges(original: Call, contract: Contract, sizes: Mapping[str, int]) -> Contract:
    """Bounds integer inputs of no known range by one that the original takes, where it does not take 0 and 1."""
    for one in (contract, *_narrower(contract)):
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


def open_integers(contract: Contract) -> list[TensorSpec]:
    """Returns the integer inputs of which no range is known."""
    return [spec for spec in contract.inputs if spec.dtype in _INTEGERS and spec.low is None and spec.high is None]


def _narrower(contract: Contract) -> Iterator[Contract]:
    """Yields contracts with other ranges for the integers of which none is known: one of them, then all."""
    unknown = open_integers(contract)
    for chosen in [*([spec] for spec in unknown), *([unknown] if len(unknown) > 1 else [])]:
        for low, high in RANGES:
            inputs = tuple(replace(s, low=low, high=high) if s in chosen else s for s in contract.inputs)
            yield replace(contract, inputs=inputs)
