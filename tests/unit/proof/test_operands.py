"""Random operands: of a large tensor only the first rows are random. Kinds of values and layouts stay as they are."""

from typing import get_args

import pytest
import torch

from fuseconv.contract.spec import TensorSpec
from fuseconv.proof import operands
from fuseconv.proof.edges import Edges
from fuseconv.proof.operands import Values, draw_operands

EDGES = Edges(literals=(0.5, 1e-5))


def drawn(values: Values, dtype: str, *shape: int) -> torch.Tensor:
    return draw_operands([TensorSpec("x", dtype, shape)], 0, values, 0, edges=EDGES).tensors[0]


@pytest.mark.parametrize("dtype", ["f16", "f32", "i64", "bool"])
@pytest.mark.parametrize("values", get_args(Values))
def test_a_large_tensor_repeats_its_first_rows(values: Values, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few = drawn(values, dtype, 6, 5, 3)
    monkeypatch.setattr(operands, "_LARGE", 6 * 5 * 3)
    assert_same(drawn(values, dtype, 6, 5, 3), few)
    many = drawn(values, dtype, 15, 5, 3)
    assert (many.shape, many.stride()) == ((15, 5, 3), few.stride())
    for first in (0, 6):
        assert_same(many[first : first + 6], few)
    assert_same(many[12:], few[:3])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 40), (40,)])
def test_any_shape_is_drawn(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "_LARGE", 8)
    assert drawn("random", "f32", *shape).shape == shape


def test_some_rows_are_drawn_however_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operands, "_LARGE", 8)
    tensor = drawn("random", "f32", 9, 40)
    assert len(tensor.unique(dim=0)) == operands._ROWS


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
