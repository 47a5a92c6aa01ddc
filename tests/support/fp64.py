"""Comparison with the fp64 reference: a result may differ from eager PyTorch if it is as close to the reference."""

import torch
from torch import Tensor

_FACTORS = {torch.float64: 2.0, torch.float32: 2.0, torch.float16: 3.0, torch.bfloat16: 3.0}
# Below this many elements a root mean square is too rough an estimate for a factor of two.
_SMALL = 64


def assert_close_to_fp64(result: Tensor, eager: Tensor, fp64: Tensor) -> None:
    """Checks dtype, shape, and the values against eager's or the f64 result, NaN and infinities too.

    The error allowed over eager's own has a floor, that of a result rounded once: eps / sqrt(12) of its size.
    """
    assert result.dtype == eager.dtype
    assert result.shape == eager.shape
    special = _special(result)
    assert torch.equal(special, _special(eager)) or torch.equal(special, _special(fp64.to(result.dtype))), (
        "NaN or infinity where neither eager nor the fp64 reference has it"
    )
    if result.numel() == 0 or torch.allclose(result, eager, *_defaults(result.dtype), equal_nan=True):
        return
    finite = result.isfinite() & fp64.isfinite()
    factor = 3.0 if result.numel() < _SMALL else _FACTORS[result.dtype]
    floor = torch.finfo(result.dtype).eps / 12**0.5 * _rms(fp64[finite])
    # Where only eager is NaN it has no error to be held against.
    seen = finite & eager.isfinite()
    own, original = (_rms(values[where].double() - fp64[where]) for values, where in ((result, finite), (eager, seen)))
    assert own <= factor * original + floor, f"rms error {own:.3g}, eager's {original:.3g}, floor {floor:.3g}"


def _special(values: Tensor) -> Tensor:
    """0 where finite, else which: nan, inf or -inf, by a number."""
    return values.isnan() * 2 + values.isposinf() * 1 - values.isneginf() * 1


def _defaults(dtype: torch.dtype) -> tuple[float, float]:
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    return rtol, atol


def _rms(values: Tensor) -> float:
    return values.double().square().mean().sqrt().item()
