"""The op against what it stands for: every dtype, odd and empty sizes, NaN and infinity, and what it refuses."""

import pathlib
import runpy

import pytest
import torch

runpy.run_path(str(pathlib.Path(__file__).resolve().parent.parent / "ops.py"))
lerp_relu = torch.ops.blend.lerp_relu


def drawn(*shape, dtype):
    return tuple(torch.randn(shape, dtype=dtype) for _ in range(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (3, 5, 9)])
def test_it_is_relu_of_lerp(shape, dtype):
    old, fresh, weight = drawn(*shape, dtype=dtype)
    torch.testing.assert_close(lerp_relu(old, fresh, weight), torch.relu(old + weight * (fresh - old)))


def test_any_layout():
    old, fresh, weight = (
        torch.randn(3, 5, 4).permute(0, 2, 1),
        torch.randn(3, 4, 10)[..., ::2],
        torch.randn(5).expand(3, 4, 5),
    )
    torch.testing.assert_close(lerp_relu(old, fresh, weight), torch.relu(old + weight * (fresh - old)))


def test_nan_and_infinity_stay():
    old = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    expected = torch.relu(old + 0.5 * (torch.ones(4) - old))
    torch.testing.assert_close(lerp_relu(old, torch.ones(4), torch.full((4,), 0.5)), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((torch.ones(2), torch.ones(3), torch.ones(2)), "the shape of old"),
        ((torch.ones(2), torch.ones(2).double(), torch.ones(2)), "the dtype"),
        ((torch.ones(2).half(),) * 3, "float32 or float64"),
    ],
)
def test_what_it_refuses(operands, message):
    with pytest.raises(RuntimeError, match=message):
        lerp_relu(*operands)


def test_its_registration():
    torch.library.opcheck(
        lerp_relu.default, drawn(3, 4, dtype=torch.float32), test_utils=("test_schema", "test_faketensor")
    )
