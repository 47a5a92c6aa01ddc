"""The ranges of random inputs that the original model accepts."""

from __future__ import annotations

import pytest
from torch import Tensor

from fuseconv.capture.drawn import with_taken_ranges
from fuseconv.contract.spec import Contract, TensorSpec


class Divides:
    """Divides by the second input, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        self.calls += 1
        if not inputs[-1].all():
            raise ZeroDivisionError
        return (inputs[0].sum() / inputs[-1],)


X = TensorSpec("x", "f32", (2,))
TAKEN = (1, 100)


@pytest.mark.parametrize(
    ("y", "taken", "calls"),
    [
        (TensorSpec("y", "f32", (2,)), (None, None), 0),
        (TensorSpec("y", "i64", (64,)), TAKEN, 2),
        (TensorSpec("y", "i64", (2,), 3, 9), (3, 9), 0),
    ],
    ids=["no integers", "integers", "integers with a range"],
)
def test_only_integers_without_a_range_are_tried(
    y: TensorSpec, taken: tuple[int | None, int | None], calls: int
) -> None:
    model = Divides()
    found = with_taken_ranges(model, Contract((X, y), ("quotient",)), {})
    assert (found.inputs[1].low, found.inputs[1].high) == taken
    assert model.calls == calls
