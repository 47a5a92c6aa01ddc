"""causal_attention: attention of each position to itself and to the positions before it, also with shared keys."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseconv.ops.autocast import lower
from fuseconv.ops.heads import adjacent_heads, of_heads
from fuseconv.ops.op import Op, Sample
from fuseconv.ops.sampling import Draw


def reference(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    """Causal attention, softmax(scale * q k^T) v, with the softmax over the keys up to the position of the query.

    If there are fewer heads of keys and values than of queries (grouped-query attention), query head h uses the keys
    and values of head h // (H / G).

    Args:
        q: [..., H, S, D], the queries of H heads.
        k: [..., G, S, D], the keys of G heads, where G divides H.
        v: [..., G, S, E], the values.
        scale: the factor by which q k^T is multiplied.

    Returns:
        [..., H, S, E]. It is stored as a contiguous tensor [..., S, H, E].

    Examples:
        >>> q = k = torch.eye(2)[None]
        >>> fuseconv.ops.causal_attention(q, k, torch.tensor([[[0.0], [1.0]]]), scale=2.0)
        tensor([[[0.0000],
                 [0.8808]]])
    """
    positions = torch.arange(q.shape[-2], device=q.device)
    hidden = positions[:, None] < positions
    scores = (torch.matmul(q, of_heads(k, q).transpose(-2, -1)) * scale).masked_fill(hidden, float("-inf"))
    # Softmax is NaN in a row of -inf, which occurs if the scores overflow.
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return adjacent_heads(torch.matmul(weights, of_heads(v, q)))


def like(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:  # noqa: ARG001
    """Returns a tensor with the dtype, shape and strides of the result, without the ops of the softmax."""
    scores = torch.matmul(q, of_heads(k, q).transpose(-2, -1))
    return adjacent_heads(torch.matmul(scores, of_heads(v, q)))


def _sizes(draw: Draw) -> list[Sample]:
    """Returns calls with H query heads, G heads of keys, S positions and width D, as (H, G, S, D)."""
    sizes = [(1, 1, 1, 8), (4, 2, 17, 24), (6, 1, 33, 16)]
    if draw.device == "cuda":  # tiles that are full, that begin and that are partly masked, and widths of kernels
        sizes += [(4, 4, 64, 64), (4, 1, 128, 64), (8, 2, 129, 64), (2, 2, 200, 128), (6, 2, 257, 128), (3, 3, 70, 80)]
        sizes += [(2, 1, 300, 32), (2, 2, 127, 256), (4, 2, 100, 96), (2, 1, 65, 136)]
    return [
        Sample(f"{h}x{g}x{s}x{d}", (draw(2, h, s, d), draw(2, g, s, d), draw(2, g, s, d), 0.25)) for h, g, s, d in sizes
    ]


def samples(device: str, dtype: torch.dtype) -> list[Sample]:
    """Returns calls that the op must support."""
    draw = Draw(device, dtype)
    q, k, v = draw(2, 4, 9, 16), draw(2, 4, 9, 16), draw(2, 4, 9, 16)
    shared = draw(2, 2, 9, 16), draw(2, 2, 9, 16)
    merged = draw(2, 24, 3, 4, 32).permute(2, 0, 3, 1, 4)
    rows = draw(2, 24, 8, 16).transpose(1, 2)
    return [
        Sample("shared_keys", (q, *shared, 0.25)),
        *_sizes(draw),
        Sample("bare", (q, k, v)),
        Sample("scale", (q, k, v, 0.25)),
        Sample("one_rank_less", (q[0], k[0], v[0], 0.25)),
        Sample("one_rank_more", (q[:, None], k[:, None], v[:, None], 0.25)),
        Sample("shared_keys_one_rank_less", (q[0], shared[0][0], shared[1][0], 0.25)),
        Sample("shared_keys_one_rank_more", (q[:, None], shared[0][:, None], shared[1][:, None], 0.25)),
        Sample("merged", (*merged.unbind(), 0.25)),
        Sample("merged_shared_keys", (rows[:, :4], rows[:, 4:6], rows[:, 6:], 0.25)),
        Sample("other_width", (q, k, draw(2, 4, 9, 8), 0.25)),
        Sample("odd_width", (draw(2, 4, 5, 7), draw(2, 2, 5, 7), draw(2, 2, 5, 3), 0.25)),
        Sample("many_positions", (draw(1, 2, 400, 16), draw(1, 1, 400, 16), draw(1, 1, 400, 16), 0.25)),
        Sample("keys_expanded", (q, draw(2, 1, 9, 16).expand(2, 4, 9, 16), v, 0.25)),
        Sample("strided", (draw.strided(2, 4, 9, 16), draw.strided(2, 2, 9, 16), draw.strided(2, 2, 9, 16))),
        Sample("unaligned", (draw.unaligned(2, 4, 9, 16), draw.unaligned(2, 4, 9, 16), v, 0.25)),
        Sample("padded", (draw.padded(2, 4, 9, 16), draw.padded(2, 2, 9, 16), draw.padded(2, 2, 9, 16), 0.25)),
        Sample("keys_transposed", (q, draw(2, 4, 16, 9).transpose(2, 3), v, 0.25)),
        Sample("no_batch", (q[:0], shared[0][:0], shared[1][:0])),
        Sample("no_positions", (q[:, :, :0], shared[0][:, :, :0], shared[1][:, :, :0])),
        Sample("no_inner", (draw(2, 4, 9, 0), draw(2, 2, 9, 0), shared[1])),
        Sample("no_values", (q, shared[0], draw(2, 2, 9, 0))),
        Sample("no_heads", (q[:, :0], k[:, :0], v[:, :0])),
        Sample("no_heads_of_queries", (q[:, :0], *shared)),
        Sample("large", (draw(2, 4, 9, 16, scale=10), draw(2, 2, 9, 16, scale=10), shared[1])),
    ]


def errors(device: str) -> list[Sample]:
    """Returns calls that the op must reject."""
    draw = Draw(device, torch.float32)
    q, k, v = draw(2, 4, 9, 16), draw(2, 2, 9, 16), draw(2, 2, 9, 16)
    axes, without_heads = (1,) * 13, draw(2, 0, 9, 16)
    many = tuple(draw(*axes, *tensor.shape[1:]) for tensor in (q, k, v))
    return [
        Sample("rank", (q[0, 0], k[0, 0], v[0, 0]), matches=r"q must have the shape \[\.\.\., H, S, D\].* \[9, 16\]"),
        Sample("width", (q, k[..., :8], v), matches=r"k must have .* the last dim of q.*but has \[2, 2, 9, 8\]"),
        Sample("leading", (q, k[:1], v), matches=r"k must have the dims before the heads.*but has \[1, 2, 9, 16\]"),
        Sample("ranks", (q, k[0], v), matches=r"k must have the dims before the heads.*but has \[2, 9, 16\]"),
        Sample("heads", (q, draw(2, 3, 9, 16), v), matches="the 3 heads of k must divide the 4 heads of q"),
        Sample("no_heads", (q, without_heads, without_heads), matches="the 0 heads of k must divide the 4 heads of q"),
        Sample("positions", (q, *draw(2, 2, 2, 10, 16)), matches="k must have the 9 positions of q, but has 10"),
        Sample("values", (q, k, draw(2, 2, 10, 16)), matches=r"v must have the dims of k.*but has \[2, 2, 10, 16\]"),
        Sample("heads_of_values", (q, k, draw(2, 4, 9, 16)), matches=r"v must have the dims of k"),
        Sample("dims", many, matches="q may have at most 15 dims if k has fewer heads than q"),
        Sample("dtypes", (q, k.half(), v), matches="k and q must have the same dtype"),
    ]


causal_attention = Op("causal_attention", reference, samples, errors, autocast=lower, like=like)
