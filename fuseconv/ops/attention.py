"""attention: softmax(scale * q k^T + mask) v, the heads of a position adjacent in memory."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fuseconv.ops.autocast import lower
from fuseconv.ops.heads import adjacent_heads, of_heads
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
    """Attention, softmax(scale * q k^T + mask) v, with the softmax over the keys.

    If there are fewer heads of keys and values than of queries (grouped-query attention), query head h uses the keys
    and values of head h // (H / G).

    Args:
        q: [..., H, S, D], the queries of H heads.
        k: [..., G, T, D], the keys of G heads, where G divides H.
        v: [..., G, T, E], the values.
        mask: a tensor that is added to the scores, or None for no mask. It must broadcast to [..., H, S, T]. A value
            of -inf hides a position. The result of a query for which all positions are hidden is 0.
        scale: the factor by which q k^T is multiplied.

    Returns:
        [..., H, S, E]. It is stored as a contiguous tensor [..., S, H, E].

    Examples:
        >>> q = k = torch.eye(2)[None]
        >>> fuseconv.ops.attention(q, k, torch.tensor([[[0.0], [1.0]]]), scale=2.0)
        tensor([[[0.1192],
                 [0.8808]]])
    """
    scores = torch.matmul(q, of_heads(k, q).transpose(-2, -1)) * scale
    scores = scores if mask is None else scores + mask
    # Softmax and its gradient are NaN in a row of -inf.
    hidden = (scores == -math.inf).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0)
    return adjacent_heads(torch.matmul(weights, of_heads(v, q)))


def like(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:  # noqa: ARG001
    """Returns a tensor with the dtype, shape and strides of the result, without the ops of the softmax."""
    scores = torch.matmul(q, of_heads(k, q).transpose(-2, -1))
    return adjacent_heads(torch.matmul(scores if mask is None else scores + mask, of_heads(v, q)))


def _sizes(draw: Draw) -> list[Sample]:
    def qkv(heads: int, queries: int, keys: int, width: int) -> tuple[Tensor, ...]:
        return draw(2, heads, queries, width), draw(2, heads, keys, width), draw(2, heads, keys, width)

    sizes = [(1, 1, 1, 8), (5, 17, 15, 24)]
    if draw.device == "cuda":  # the sizes at which the kernel takes other branches
        sizes += [(3, 16, 16, 16), (3, 49, 49, 32), (2, 64, 65, 40), (1, 70, 100, 64), (3, 33, 128, 80)]
        sizes += [(2, 20, 64, 128), (1, 9, 200, 64), (2, 5, 256, 48), (1, 7, 257, 16), (1, 6, 9, 136)]
        sizes += [(3, 128, 384, 64), (2, 300, 301, 64), (2, 129, 700, 128), (1, 257, 513, 72), (3, 1, 1000, 40)]
    return [
        Sample("x".join(map(str, one)), (*qkv(*one), draw(one[1], one[2]) if at % 2 else None, 0.25))
        for at, one in enumerate(sizes)
    ]


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    q, k, v = draw(2, 3, 5, 16), draw(2, 3, 24, 16), draw(2, 3, 24, 16)
    hidden = torch.zeros(5, 24, dtype=dtype, device=device)
    hidden[:, 20:] = hidden[3] = float("-inf")
    merged = draw(2, 49, 3, 4, 32).permute(2, 0, 3, 1, 4)
    windows = draw(4, 1, 4, 49, 49).expand(4, 2, 4, 49, 49)
    return [
        *_sizes(draw),
        Sample("bare", (q, k, v)),
        Sample("scale", (q, k, v, None, 0.25)),
        Sample("one_rank_less", (q[0], k[0], v[0], None, 0.25)),
        Sample("one_rank_more", (q[:, None], k[:, None], v[:, None], draw(3, 1, 24), 0.25)),
        Sample("shared_keys", (draw(2, 6, 5, 16), k, v, None, 0.25)),
        Sample("shared_keys_mask", (draw(2, 6, 5, 16), k, v, draw(2, 1, 5, 24), 0.25)),
        Sample("shared_keys_mask_of_heads", (draw(2, 6, 5, 16), k, v, draw(6, 1, 24), 0.25)),
        Sample("shared_keys_one_rank_less", (draw(6, 5, 16), k[0], v[0], draw(5, 24), 0.25)),
        Sample("shared_keys_long", (draw(1, 4, 70, 64), *draw(2, 1, 2, 100, 64), draw(1, 1, 70, 100), 0.25)),
        Sample("one_head_of_keys", (q, k[:, :1], v[:, :1], hidden, 0.25)),
        Sample("merged", (*merged.unbind(), None, 0.25)),
        Sample("windows", (*(draw(4, 2, 4, 49, 32) for _ in range(3)), windows, 0.25)),
        Sample("mask", (q, k, v, draw(2, 3, 5, 24), 0.25)),
        Sample("mask_of_heads", (q, k, v, draw(3, 1, 1), 0.25)),
        Sample("mask_of_keys", (q, k, v, draw(2, 1, 1, 24), 0.25)),
        Sample("mask_of_queries", (q, k, v, draw(5, 1), 0.25)),
        Sample("mask_strided", (q, k, v, draw.strided(5, 24), 0.25)),
        Sample("mask_unaligned", (q, k, v, draw.unaligned(5, 24), 0.25)),
        Sample("hidden", (q, k, v, hidden, 0.25)),
        Sample("other_width", (q, k, draw(2, 3, 24, 8), None, 0.25)),
        Sample("odd_width", (draw(2, 3, 5, 7), draw(2, 3, 9, 7), draw(2, 3, 9, 7), None, 0.25)),
        Sample("many_keys", (draw(1, 2, 5, 16), draw(1, 2, 400, 16), draw(1, 2, 400, 16), None, 0.25)),
        Sample("keys_expanded", (q, draw(2, 1, 24, 16).expand(2, 3, 24, 16), v, None, 0.25)),
        Sample("strided", (draw.strided(2, 3, 5, 16), draw.strided(2, 3, 24, 16), draw.strided(2, 3, 24, 16))),
        Sample("unaligned", (draw.unaligned(2, 3, 5, 16), draw.unaligned(2, 3, 24, 16), v, None, 0.25)),
        Sample("unaligned_long", (*(draw.unaligned(1, 2, 100, 64) for _ in range(3)), None, 0.25)),
        Sample("padded", (draw.padded(2, 3, 5, 16), draw.padded(2, 3, 24, 16), draw.padded(2, 3, 24, 16), None, 0.25)),
        Sample("keys_transposed", (q, draw(2, 3, 16, 24).transpose(2, 3), v, None, 0.25)),
        Sample("no_queries", (draw(2, 3, 0, 16), k, v)),
        Sample("no_keys", (q, draw(2, 3, 0, 16), draw(2, 3, 0, 16))),
        Sample("no_inner", (draw(2, 3, 5, 0), draw(2, 3, 24, 0), v)),
        Sample("no_values", (q, k, draw(2, 3, 24, 0))),
        Sample("no_heads", (draw(2, 0, 5, 16), draw(2, 0, 24, 16), draw(2, 0, 24, 16))),
        Sample("no_heads_of_queries", (draw(2, 0, 5, 16), k, v)),
        Sample("large", (draw(2, 3, 5, 16, scale=10), draw(2, 3, 24, 16, scale=10), v)),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    q, k, v = draw(2, 5, 16), draw(2, 24, 16), draw(2, 24, 16)
    return [
        Sample("rank", (q[0], k[0], v[0]), matches=r"q must have the shape \[\.\.\., H, S, D\], but has \[5, 16\]"),
        Sample("width", (q, draw(2, 24, 8), v), matches=r"k must have .* the last dim of q.*but has \[2, 24, 8\]"),
        Sample("leading", (q[None], draw(2, 2, 24, 16), v[None]), matches=r"k must have the dims before the heads"),
        Sample("heads", (q, draw(3, 24, 16), v), matches="the 3 heads of k must divide the 2 heads of q"),
        Sample("heads_of_values", (q, k, v[:1]), matches=r"v must have the dims of k.*but has \[1, 24, 16\]"),
        Sample("keys", (q, k, draw(2, 23, 16)), matches=r"v must have the dims of k.*but has \[2, 23, 16\]"),
        Sample("mask", (q, k, v, draw(5, 23)), matches=r"mask of shape \[5, 23\] cannot be broadcast to \[2, 5, 24\]"),
        Sample(
            "bool_mask", (q, k, v, torch.ones(5, 24, dtype=torch.bool, device=device)), matches="must have the dtype"
        ),
        Sample("dtypes", (q, k.half(), v), matches="k and q must have the same dtype"),
    ]


attention = Op("attention", reference, samples, errors, autocast=lower, like=like)
