"""Numbers in float64, reductions of half dtypes, and reductions without elements, for every target."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from support.lowering_table import Functions, Table, weight

_WEIGHTS = weight(4, 8).double(), weight(3, 6).double()

DOUBLES = Table(
    ("x=f64[b:0..8,6,8]",),
    {
        "factors": lambda x: (x * 0.1, 0.1 - x, x / 0.1, x + 0.1, 0.3**x, x.abs() ** 0.3),
        "alpha": lambda x: (torch.add(x, x * x, alpha=0.1), torch.sub(x, x * x, alpha=0.1)),
        "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.1), torch.addcdiv(x, x, x.abs() + 1, value=0.1)),
        "lerp": lambda x: (torch.lerp(x, x * x, 0.3), torch.lerp(x, x * x, 0.7)),
        "bounds": lambda x: (x.clamp(-0.1, 0.3), F.hardtanh(x, -0.1, 0.3), F.threshold(x, 0.1, 0.3)),
        "selections": lambda x: (x.masked_fill(x > 0, 0.1), torch.where(x > 0.3, x, 0.1), (x >= 0.1).long()),
        "constants": lambda x: (
            torch.full_like(x, 0.1) + x,
            x + torch.tensor(0.1, dtype=x.dtype),
            x.new_full((8,), 0.1) + x,
        ),
        "steps": lambda x: x + torch.arange(0, 0.8, 0.1, dtype=x.dtype),
        "activations": lambda x: (F.celu(x, 1.1), F.gelu(x, approximate="tanh"), F.softshrink(x, 0.1)),
        "logarithms": lambda x: (x.abs().log10(), x.abs().log2(), torch.logaddexp2(x, x * x)),
        "angles": lambda x: (torch.rad2deg(x), torch.deg2rad(x), torch.sinc(x)),
        "losses": lambda x: (
            F.huber_loss(x, x * x, "none", 0.1),
            F.smooth_l1_loss(x, x * x, reduction="none", beta=0.1),
        ),
        "scaled products": lambda x: (
            (x @ x.mT) * 0.3,
            (x / 0.3) @ (x.mT * 0.7),
            torch.baddbmm(x[..., :6], x, x.mT, beta=0.1, alpha=0.3),
            F.linear(x * 0.3, _WEIGHTS[0]) * 0.7,
            _WEIGHTS[1] @ (x * 0.3),
            (x.unsqueeze(0) * 0.3) @ x.mT,
        ),
        "einsum": lambda x: (
            torch.einsum("bhd,bjd->bjh", x, x),
            torch.einsum("bhd,bjd->bhj", x, x),
            torch.einsum("bhd,kd->bkh", x, _WEIGHTS[0]),
        ),
        "attention": lambda x: (F.scaled_dot_product_attention(x, x, x), torch.softmax((x @ x.mT) * 0.1, -1) @ x),
        "padding": lambda x: F.pad(x, (1, 1), value=0.1),
    },
    sizes=(0, 1, 3),
    error=1e-14,
)

_SUMS: Functions = {
    "sums": lambda x: (x.sum(1), x.sum(-1, keepdim=True), x.sum((1, 2))),
    "means": lambda x: (x.mean(-1), x.mean(-1, keepdim=True), x.mean((1, 2), keepdim=True)),
    "products": lambda x: (x.prod(-1), x.prod(1, keepdim=True)),
    "extremes": lambda x: (
        x.amax(-1),
        x.amin(-1, keepdim=True),
        x.max(-1, keepdim=True)[0],
        x.argmax(-1, keepdim=True),
    ),
    "norms": lambda x: (torch.linalg.vector_norm(x, 2, -1, True), F.normalize(x, dim=-1)),
    "logsumexp": lambda x: (x.logsumexp(-1), x.logsumexp(-1, keepdim=True)),
    "any": lambda x: ((x > 0).any(-1, keepdim=True), (x > 0).all(-1)),
    "cumsum": lambda x: (x.cumsum(1), x.cumsum(-1)),
}

HALVES = Table(
    ("x=f16[b:1..8,6,8]",),
    {
        **_SUMS,
        "elementwise": lambda x: (
            x.abs(),
            x.neg(),
            x.exp(),
            x.sigmoid(),
            F.gelu(x),
            x * 0.1,
            x.abs().sqrt(),
            x.round(),
        ),
        "sum of all": lambda x: (x.sum(), x.prod()),
        "sums to float": lambda x: x.sum(1, dtype=torch.float32),
    },
    error=2e-3,  # PyTorch multiplies halves in halves
)

EMPTY = Table(
    ("x=f32[b:0..8,6,8]",),
    {
        **_SUMS,
        "sum of rows": lambda x: (x.sum(0), x.sum(0, keepdim=True), x.sum()),
        "group norm": lambda x: (F.group_norm(x, 3), F.group_norm(x, 2, weight(6), weight(6)), F.instance_norm(x)),
        "attention grouped": lambda x: F.scaled_dot_product_attention(
            x.unflatten(-1, (4, 2)).transpose(1, 2),
            *2 * (x[..., :4].unflatten(-1, (2, 2)).transpose(1, 2),),
            enable_gqa=True,
        ),
        "softmax": lambda x: (x.softmax(-1), x.log_softmax(-1)),
        "products": lambda x: (
            x.movedim(0, -1) @ x.permute(1, 0, 2),
            torch.bmm(x.movedim(0, -1), x.permute(1, 2, 0).mT),
            torch.baddbmm(x[:, :1, 0].sum(), x.permute(1, 2, 0), x.permute(1, 2, 0).mT),
            torch.einsum("bhd,bhe->hde", x, x),
            F.linear(x.movedim(0, -1), x[:, 0].T),
        ),
        "roll": lambda x: (x.roll(1, 0), x.roll(-11, 0), x.roll((1, 2), (0, 1)), x.roll(3), x.roll((1, -1), (1, 2))),
    },
    sizes=(3, 0, 1),  # what is left unwritten has numbers of the call before
)
