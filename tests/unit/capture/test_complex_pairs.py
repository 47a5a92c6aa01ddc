"""Complex numbers between real ones are computed as pairs, and other complex numbers stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support.functions import Function
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture

as_complex, as_real = torch.view_as_complex, torch.view_as_real


def angles(count: int) -> Tensor:
    return torch.outer(torch.arange(count).float(), torch.tensor([1.0, 0.1, 0.01, 0.001]))


class Rotation(nn.Module):
    """The rotation of queries in Llama, as its authors wrote it."""

    turns: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(64, 4), angles(64)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        turns = self.turns[: x.shape[1]].view(1, x.shape[1], 1, -1)
        pairs = x.unflatten(-1, (2, 8)).float().reshape(*x.shape[:-1], 2, -1, 2)
        return as_real(as_complex(pairs) * turns).flatten(3).type_as(x)


def on_pairs(change: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A function of complex numbers [batch, n, 8], and of the real ones [batch, n, 8]."""
    return Function(lambda _, x: as_real(change(as_complex(x.unflatten(-1, (8, 2))), x[..., ::2])))


def halves(z: Tensor, _: Tensor) -> Tensor:
    return torch.cat([z[..., -4:], z[:, :, :4].neg()], -1).transpose(-1, -2).permute(-1, 0, 1)


PAIRS: dict[str, nn.Module] = {
    "a rotation": Rotation(),
    "computed": on_pairs(lambda z, r: z * torch.polar(torch.ones_like(r), r).to(z.device) * 0.5),
    "a real factor": on_pairs(lambda z, r: r * z + z * 2 - torch.complex(r, r * 3)),
    "conjugates": on_pairs(lambda z, _: z * z.conj().contiguous()),
    "parts": Function(lambda _, x: (as_complex(x.unflatten(-1, (8, 2))) * as_complex(x.unflatten(-1, (8, 2)))).imag),
    "axes": on_pairs(halves),
    "shapes": on_pairs(lambda z, _: (z * z).unsqueeze(-1).expand(-1, -1, -1, 3).reshape(z.shape[0], -1, 3).flatten(1)),
    "indices": on_pairs(lambda z, _: torch.stack([z, z], -2)[..., 0, :][:, torch.tensor([0, -1])].select(-1, -1)),
    "no op between": on_pairs(lambda z, _: z),
    "adjoint": on_pairs(lambda z, _: (z.mH * z.mH).mH.resolve_conj() * z),
    "a mask": on_pairs(lambda z, r: (z * z)[:, :, torch.tensor([True, False] * 4)] * z[:, :, 4:]),
    "a Fourier transform": Function(lambda _, x: as_real(torch.fft.rfft(x, dim=-1) * 0.5)),
}

LEFT = {"adjoint": 6, "a mask": 3, "a Fourier transform": 1}
"""How many complex tensors are left: those of which no op is known, and what they are computed from."""


def complex_ops(module: nn.Module) -> list[str]:
    program = capture(subject_of(module, "x=f32[batch:1..4,n:2..9,16]"))
    for shape in ((1, 2, 16), (3, 7, 16)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        x[0, 0, :4] = torch.tensor([torch.inf, -torch.inf, torch.nan, 3e38])
        actual, expected = program.exported.module()(x)[0], module(x)
        torch.testing.assert_close(actual, expected[0] if isinstance(expected, tuple) else expected, equal_nan=True)
    nodes = [node for node in program.exported.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
    return [node.name for node in nodes if node.meta["val"].is_complex()]


@pytest.mark.parametrize("name", PAIRS)
def test_products_of_pairs(name: str) -> None:
    left = complex_ops(PAIRS[name])
    assert len(left) == LEFT.get(name, 0), left


def written(_: object, x: Tensor) -> Tensor:
    z = as_complex(x.unflatten(-1, (8, 2)).clone()) * 1j
    z[:, 0].mul_(2)
    return as_real(z)


OTHERS: dict[str, nn.Module] = {
    "written in place": Function(written),
    "no real numbers of them": Function(lambda _, x: as_complex(x.unflatten(-1, (8, 2))) * 2),
    "between Fourier transforms": Function(lambda _, x: torch.fft.irfft(torch.fft.rfft(x) * 0.5, 16)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_complex_numbers_stay(name: str) -> None:
    assert complex_ops(OTHERS[name])
