"""Sums and squares that overflow give what PyTorch gives."""

import pytest
import torch
from support.op_table import DEVICES

from fuseconv import ops
from fuseconv.ops.description import DTYPES
from fuseconv.ops.sampling import Draw


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float16], ids=str)
@pytest.mark.parametrize(  # the sums overflow in PyTorch on the CPU too
    ("device", "largest"), [(device, 1e30) for device in DEVICES] + [("cuda", 3e38)] * (DEVICES[-1] == "cuda")
)
def test_norms_of_values_whose_squares_or_sums_overflow_are_finite(
    dtype: torch.dtype, device: str, largest: float
) -> None:
    x = Draw(device, dtype)(4, 2, 48).abs().clamp(max=1) * largest
    rows_across = x.transpose(1, 2)
    for y in (
        ops.layer_norm_act(rows_across, None, None, 1e-5, "none"),
        ops.layer_norm_act(x, None, None, 1e-5, "none"),
        ops.rms_norm(x, None, 1e-5),
        ops.group_norm_act(rows_across, 4, None, None, 1e-5, "none"),
        ops.add_layer_norm(x, x, None, None, 1e-5)[0] if largest < 1e38 else x,
    ):
        assert y.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_f16_overflows_as_eager_does(device: str) -> None:
    x = torch.tensor([65504.0, 60000.0, 6e4, -6e4, 65504.0, 32768.0, 65504.0], device=device).half()
    y = torch.tensor([0.0, 6e4, -6e4, -6e4, 15.0, 32768.0, 16.0], device=device).half()
    for result, original in (
        (ops.add_relu(x, y), torch.relu(x + y)),
        (ops.mul_add(x, torch.ones_like(x), y), x + y),
        (ops.mul_add(x, x, y), x * x + y),
        (ops.bias_act(x, y, "none"), x + y),
        (ops.add_layer_norm(x[:2], y[:2], None, None, 1e-5)[1], x[:2] + y[:2]),
        (ops.add_rms_norm(x[:2], y[:2], None, 1e-5)[1], x[:2] + y[:2]),
    ):
        assert torch.equal(result, original)
