"""attention_score: the attention weights softmax(scale * q k^T + mask)."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor

from fuseconv.ops.autocast import lower
from fuseconv.ops.gradient import Gradient, Values
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(q: Tensor, k: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """The attention weights softmax(scale * q k^T + mask), with the softmax over the last dim.

    Args:
        q: [..., S, D], the queries.
        k: [..., T, D], the keys. The leading dims of q and k broadcast.
        mask: a tensor that is added to the scores, or None for no mask. It must broadcast to [..., S, T]. A value of
            -inf hides a position.
        scale: the factor by which q k^T is multiplied.

    Returns:
        The weights, [..., S, T].

    Examples:
        >>> q, k = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 2.0]])
        >>> fuseconv.ops.attention_score(q, k)
        tensor([[0.5000, 0.5000]])
    """
    scores = torch.matmul(q, k.transpose(-2, -1)) * scale
    return torch.softmax(scores if mask is None else scores + mask, -1)


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    q, k = draw(2, 3, 5, 16), draw(2, 3, 24, 16)
    # These masks are finite, so that the differences that the tests compute are defined. Other tests cover -inf.
    causal = torch.full((24, 24), -1e4, dtype=dtype, device=device).triu(1)
    padding = torch.tensor([0.0, -1e4], dtype=dtype, device=device).repeat_interleave(12)[None, None, None]
    return [
        Sample("bare", (q, k)),
        Sample("scale", (q, k, None, 0.25)),
        Sample("matrices", (draw(7, 16), draw(9, 16), None, 0.25)),
        *(
            Sample(f"columns_{size}", (draw(3, 16), draw(size, 16), None, 0.25))
            for size in (1, 8, 197, 384, 1024, 3073)
        ),
        Sample("long", (draw(2, 4), draw(17000, 4), None, 0.5)),
        Sample("threads", (draw(4, 70, 16), draw(4, 197, 16), None, 0.25)),
        Sample("mask", (q, k, draw(2, 3, 5, 24), 0.25)),
        Sample("mask_of_columns", (q, k, draw(24), 0.25)),
        Sample("mask_of_rows", (q, k, draw(5, 1), 0.25)),
        Sample("mask_strided", (q, k, draw.strided(5, 24), 0.25)),
        Sample("causal", (draw(2, 24, 16), draw(2, 24, 16), causal, 0.25)),
        Sample("padding", (q, k, padding, 0.25)),
        Sample("keys_broadcast", (q, draw(3, 24, 16), None, 0.25)),
        Sample("queries_broadcast", (draw(5, 16), k, None, 0.25)),
        Sample("keys_expanded", (q, draw(2, 1, 24, 16).expand(2, 3, 24, 16), None, 0.25)),
        Sample("heads_inside", (draw(2, 5, 3, 16).transpose(1, 2), draw(2, 24, 3, 16).transpose(1, 2), None, 0.25)),
        Sample("keys_transposed", (q, draw(2, 3, 16, 24).transpose(2, 3), None, 0.25)),
        Sample("strided", (draw.strided(2, 5, 16), draw.strided(2, 24, 16), None, 0.25)),
        Sample("unaligned", (draw.unaligned(2, 5, 16), draw.unaligned(2, 24, 16), None, 0.25)),
        Sample("no_rows", (draw(2, 0, 16), draw(2, 24, 16))),
        Sample("no_columns", (draw(2, 5, 16), draw(2, 0, 16))),
        Sample("no_inner", (draw(2, 5, 0), draw(2, 24, 0), draw(24))),
        Sample("no_batch", (draw(0, 5, 16), draw(0, 24, 16))),
        Sample("large", (draw(2, 5, 16, scale=10), draw(2, 24, 16, scale=10))),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    q, k = draw(2, 5, 16), draw(2, 24, 16)
    allowed = torch.ones(5, 24, dtype=torch.bool, device=device)
    return [
        Sample("inner", (q, draw(2, 24, 8)), matches=r"k must have the shape \[\.\.\., T, 16\].*but has \[2, 24, 8\]"),
        Sample("rank", (draw(16), k), matches=r"q must have the shape \[\.\.\., S, D\], but has \[16\]"),
        Sample(
            "batch", (q, draw(3, 24, 16)), matches=r"q without its last two dims of shape \[2\] and k.*\[3\] cannot"
        ),
        Sample("bool_mask", (q, k, allowed), matches=r"in place of a bool mask.*masked_fill\(~mask, float\('-inf'\)\)"),
        Sample("mask", (q, k, draw(5, 23)), matches=r"mask of shape \[5, 23\] cannot be broadcast to \[2, 5, 24\]"),
        Sample("mask_rank", (q, k, draw(1, 2, 5, 24)), matches=r"mask of shape \[1, 2, 5, 24\] cannot be broadcast to"),
        Sample("dtypes", (q, k.half()), matches="k and q must have the same dtype"),
    ]


def _keep(arguments: SimpleNamespace, results: tuple[Tensor, ...]) -> Values:
    mask = arguments.mask
    return {
        "q": arguments.q,
        "k": arguments.k,
        "scale": arguments.scale,
        "mask_shape": None if mask is None else mask.shape,
        "y": results[0],
    }


def _backward(kept: SimpleNamespace, needed: frozenset[str], grad: Tensor) -> Values:
    score = torch.ops.aten._softmax_backward_data(grad, kept.y, -1, kept.y.dtype)
    gradients = {}
    if "q" in needed:
        gradients["q"] = (torch.matmul(score, kept.k) * kept.scale).sum_to_size(kept.q.shape)
    if "k" in needed:
        gradients["k"] = (torch.matmul(score.transpose(-2, -1), kept.q) * kept.scale).sum_to_size(kept.k.shape)
    if "mask" in needed:
        gradients["mask"] = score.sum_to_size(kept.mask_shape)
    return gradients


attention_score = Op("attention_score", reference, samples, errors, Gradient(_keep, _backward), lower)
