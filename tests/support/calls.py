"""Calls of the small bundle that its contract accepts, and calls that it rejects."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_BATCH, MAX_SEQ = 16, 32


def draw(batch: int, seq: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(batch * 100 + seq)
    x, skip = torch.randn(2, batch, seq, 8, generator=generator)
    return x.clone(), skip.clone(), torch.rand(batch, seq, generator=generator) > 0.5


X, SKIP, KEEP = draw(3, 5)


VIOLATIONS: dict[str, tuple[tuple[object, ...], dict[str, object], str]] = {
    "batch_0": (draw(0, 5), {}, "x has size 0 at axis 0, outside batch:1..16"),
    "batch_above": (draw(MAX_BATCH + 1, 5), {}, "x has size 17 at axis 0, outside batch:1..16"),
    "seq_above": (draw(1, MAX_SEQ + 1), {}, "x has size 33 at axis 1, outside seq:1..32"),
    "static_size": ((X[..., :7], SKIP, KEEP), {}, "x has size 7 at axis 2, but the contract says 8"),
    "tied_dims": ((X, SKIP[:, :4], KEEP), {}, "skip has seq=4 at axis 1, but x has 5"),
    "tied_dims_of_a_mask": ((X, SKIP, KEEP[:2]), {}, "keep has batch=2 at axis 0, but x has 3"),
    "dtype": ((X.double(), SKIP, KEEP), {}, "x has dtype f64, but the contract says f32"),
    "dtype_of_a_mask": ((X, SKIP, KEEP.float()), {}, "keep has dtype f32, but the contract says bool"),
    "device": ((X.to("meta"), SKIP, KEEP), {}, "x is on meta, but the contract says cpu"),
    "rank": ((X[0], SKIP, KEEP), {}, "x has 2 dims"),
    "no_tensor": (([[1.0]], SKIP, KEEP), {}, "input x is of type list, not a torch.Tensor"),
    "too_few": ((X, SKIP), {}, "takes 3 inputs"),
    "too_many": ((X, SKIP, KEEP, KEEP), {}, "takes 3 inputs"),
    "unknown_name": ((X, SKIP), {"mask": KEEP}, "the call passes 2 positional, mask"),
    "twice": ((X, SKIP, KEEP), {"keep": KEEP}, "takes 3 inputs"),
}
