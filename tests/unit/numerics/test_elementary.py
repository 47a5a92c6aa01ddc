"""The elementary functions of activations in f64, against 40 digits, within a few roundings."""

from __future__ import annotations

from collections.abc import Callable

import mpmath
import pytest
import torch
from mpmath import mp, mpf

from fuseconv import ops

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def logistic(x: mpf) -> mpf:
    return 1 / (1 + mpmath.exp(-x))


def tanh_gelu(x: mpf) -> mpf:
    return x * logistic(2 * mpmath.sqrt(2 / mpmath.pi) * (x + mpf("0.044715") * x**3))


EXACT: dict[str, Callable[[mpf], mpf]] = {
    "gelu": lambda x: x * mpmath.ncdf(x),
    "gelu_tanh": tanh_gelu,
    "silu": lambda x: x * logistic(x),
    "sigmoid": logistic,
    "tanh": mpmath.tanh,
}
UNITS = 4


@pytest.mark.parametrize("act", EXACT)
@pytest.mark.parametrize("device", DEVICES)
def test_functions_of_f64(act: str, device: str) -> None:
    near = torch.linspace(-9, 9, 1201, dtype=torch.float64)
    far = torch.tensor([1e-300, 1e-9, 0.6249999, 0.625, 8.29, 8.31, 12, 37, 38, 700, 708], dtype=torch.float64)
    x = torch.cat([near, far, -far])
    y = ops.bias_act(x.to(device), torch.zeros_like(x, device=device), act).cpu()
    with mp.workdps(40):
        exact = [EXACT[act](mpf(one)) for one in x.tolist()]
        errors = [abs(mpf(one) - true) for one, true in zip(y.tolist(), exact, strict=True)]
    # The gelus are x times what is near 1 to some roundings of 1: as exact as eager's, not relative to a far tail.
    scale = x.abs() if act.startswith("gelu") else torch.tensor([float(abs(true)) for true in exact], dtype=x.dtype)
    allowed = UNITS * torch.finfo(torch.float64).eps * scale + torch.finfo(torch.float64).tiny
    worst = (torch.tensor([float(error) for error in errors], dtype=x.dtype) / allowed).max()
    assert worst <= 1, f"{act}: {worst * UNITS:.2f} units in the last place"
