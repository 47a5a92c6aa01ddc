"""Attention with heads folded into the batch, as batched matrix products, and unfolded for a mask."""

import math
from collections.abc import Callable

import pytest
import torch
from support.attention import DIM, HEADS, SDPA, WIDTH, Layer, attention, fused, merged
from torch import Tensor

from fuseconv.matching.graph import op_name
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings

FAR = -1e9


def folded(m: Layer, x: Tensor, order: str = "contiguous") -> list[Tensor]:
    """Queries, keys and values of [batch * heads, length, WIDTH]."""
    if order == "by time":  # [length, batch * heads, WIDTH], turned
        flat = (
            part.transpose(0, 1).contiguous().view(-1, x.shape[0] * HEADS, WIDTH) for part in m.project(x).chunk(3, -1)
        )
        return [part.transpose(0, 1) for part in flat]
    return [part.contiguous().view(x.shape[0] * HEADS, -1, WIDTH) for part in m.heads(x)]


def unfolded(s: Tensor, x: Tensor) -> Tensor:
    return s.view(x.shape[0], HEADS, s.shape[-2], s.shape[-1])


def batched(
    change: Callable[..., Tensor],
    softmax: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1),
    order: str = "contiguous",
    scale: str = "query",
) -> Callable[..., Tensor]:
    """A layer in products of [batch * heads, ...]; `change` is made where the heads are unfolded."""

    def function(m: Layer, x: Tensor, *rest: Tensor) -> Tensor:
        q, k, v = folded(m, x, order)
        s = torch.bmm(q / math.sqrt(WIDTH) if scale == "query" else q, k.transpose(1, 2))
        s = s if scale == "query" else s / math.sqrt(WIDTH)
        s = change(m, unfolded(s, x), x.shape[1], *rest).view(x.shape[0] * HEADS, x.shape[1], x.shape[1])
        o = torch.bmm(softmax(s), v)
        if order == "by time":
            return o.transpose(0, 1).contiguous().view(x.shape[1], x.shape[0], DIM).transpose(0, 1)
        return merged(unfolded(o, x))

    return function


def alibi(m: Layer, n: int) -> Tensor:
    return m.slopes * (torch.arange(n) - n + 1)


def baddbmm(beta: float, change: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Scores in one call: on the positions' bias, which repeats for every batch, or on nothing."""

    def function(m: Layer, x: Tensor) -> Tensor:
        q, k, v = folded(m, x)
        n = x.shape[1]
        bias = alibi(m, n).to(x.dtype).repeat(x.shape[0], 1, 1)
        s = torch.baddbmm(bias, q, k.transpose(1, 2), beta=beta, alpha=1 / math.sqrt(WIDTH))
        p = change(m, unfolded(s, x), n).softmax(-1)
        return merged(unfolded(torch.bmm(p.view(x.shape[0] * HEADS, n, n), v), x))

    return function


def by_time(m: Layer, x: Tensor) -> Tensor:
    """[length, batch, heads, WIDTH], by einsum."""
    q, k, v = (part.transpose(0, 1).reshape(x.shape[1], x.shape[0], HEADS, WIDTH) for part in m.project(x).chunk(3, -1))
    s = torch.einsum("ibnd,jbnd->bnij", q, k) / math.sqrt(WIDTH)
    return torch.einsum("bnij,jbnd->ibnd", s.softmax(-1), v).transpose(0, 1).reshape(x.shape[0], -1, DIM)


def causal(m: Layer, s: Tensor, n: int) -> Tensor:
    return s.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf)


def biased(m: Layer, s: Tensor, n: int) -> Tensor:
    return s + alibi(m, n).to(s.dtype)


def upcast(s: Tensor) -> Tensor:
    return torch.softmax(s, -1, dtype=torch.float32).type_as(s)


FREE = {
    "folded": batched(lambda m, s, n: s),
    "folded, unfolded for nothing": batched(lambda m, s, n: s.clone()),
    "by time": batched(lambda m, s, n: s, order="by time"),
    "einsum by time": by_time,
    "baddbmm on nothing": baddbmm(0, lambda m, s, n: s),
}
CAUSAL = {
    "filled": batched(causal),
    "filled, scaled after": batched(causal, scale="score"),
    "added": batched(lambda m, s, n: s + torch.full((n, n), FAR, dtype=s.dtype).triu(1)),
    "softmax in f32": batched(causal, softmax=upcast),
    "by time": batched(causal, softmax=upcast, order="by time"),
    "baddbmm on nothing": baddbmm(0, causal),
}
KEPT = {
    "biased": batched(biased),
    "biased and causal": batched(lambda m, s, n: causal(m, biased(m, s, n), n)),
    "baddbmm on a bias": baddbmm(1, lambda m, s, n: s),
    "baddbmm on a bias, causal": baddbmm(1, lambda m, s, n: s + torch.full((n, n), FAR, dtype=s.dtype).triu(1)),
    "scaled after the bias": lambda m, x: merged(
        torch.softmax((m.heads(x)[0] @ m.heads(x)[1].mT + alibi(m, x.shape[1]).to(x.dtype)) / math.sqrt(WIDTH), -1)
        @ m.heads(x)[2]
    ),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FREE)
def test_without_a_mask_it_is_one_op(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    assert attention(fused(FREE[name], canonical_rules, dtype)[1]) == (None, 0.0, False)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_becomes_a_flag(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    assert attention(fused(CAUSAL[name], canonical_rules, dtype)[1]) == (None, 0.0, True)


@pytest.mark.diagonal(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_what_says_more_stays_a_mask(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    mask, _, is_causal = attention(fused(KEPT[name], canonical_rules, dtype)[1])
    assert mask is not None
    assert not is_causal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_bias_of_heads_is_not_repeated_for_each_query(dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    """It is [1, heads, 1, keys], also where the heads of the scores are unfolded for it."""
    _, result = fused(KEPT["biased"], canonical_rules, dtype)
    (node,) = [node for node in result.exported.graph.nodes if op_name(node.target) == SDPA]
    assert list(node.args[3].meta["val"].shape[1:3]) == [HEADS, 1]


@pytest.mark.parametrize("wide", ["queries and keys", "queries"])
def test_scores_in_f32_of_narrow_operands(wide: str, canonical_rules: tuple[Rule, ...]) -> None:
    """GPT-J multiplies queries and keys of 16 bits in f32. What was computed in f32 is not rounded."""

    def function(m: Layer, x: Tensor) -> Tensor:
        q, k, v = m.heads(x)
        keys = k.float() if wide == "queries and keys" else k.float().sin()
        s = causal(m, q.float() @ keys.mT / math.sqrt(WIDTH), x.shape[1])
        return merged(s.softmax(-1).to(v.dtype) @ v)

    _, result = fused(function, canonical_rules, torch.bfloat16)
    found = [node for node in result.exported.graph.nodes if op_name(node.target) == SDPA]
    assert [node.args[0].meta["val"].dtype for node in found] == ([torch.bfloat16] if wide != "queries" else [])


def hidden(n: int) -> Tensor:
    """Hides the keys behind each query, and all keys from the third query."""
    return torch.ones(n, n).triu(1).bool() | (torch.arange(n)[:, None] == 2)


LOWEST = torch.finfo(torch.float32).min
MASKS: dict[str, tuple[bool, Callable[[Layer, Tensor, Tensor, int], Tensor]]] = {
    "lowest fill": (True, lambda m, s, x, n: s.masked_fill(hidden(n), LOWEST)),
    "fills": (True, lambda m, s, x, n: s.masked_fill(hidden(n), -1e4).masked_fill(hidden(n).roll(1, 0), -2e4)),
    "lowest fills": (False, lambda m, s, x, n: s.masked_fill(hidden(n), LOWEST).masked_fill(hidden(n).T, -1e4)),
    "narrow term": (True, lambda m, s, x, n: s + alibi(m, n).to(x.dtype).to(s.dtype)),
    "scaled term": (True, lambda m, s, x, n: (s + alibi(m, n).to(x.dtype).to(s.dtype)) / 8),
    "term scaled by no power of 2": (False, lambda m, s, x, n: (s + alibi(m, n).to(x.dtype).to(s.dtype)) / 3),
    "two terms": (False, lambda m, s, x, n: s + alibi(m, n).to(x.dtype).to(s.dtype) + x[:, None, :, :1].to(s.dtype).mT),
    "positions": (False, lambda m, s, x, n: s + (torch.arange(n) + 2049)),
}
"""Whether attention in bf16 and f16 keeps what the model computes in f32, and the steps."""


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_masks_of_wide_scores_are_exact(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    is_exact, change = MASKS[name]

    def function(m: Layer, x: Tensor) -> Tensor:
        q, k, v = m.heads(x)
        s = change(m, q.float() @ k.float().mT / math.sqrt(WIDTH), x, x.shape[1])
        return merged(s.softmax(-1).to(v.dtype) @ v)

    _, result = fused(function, canonical_rules, dtype)
    assert (SDPA in [op_name(node.target) for node in result.exported.graph.nodes]) == is_exact


def test_a_bias_behind_a_fill_counts_where_all_keys_are_hidden(canonical_rules: tuple[Rule, ...]) -> None:
    def function(m: Layer, x: Tensor) -> Tensor:
        q, k, v = m.heads(x)
        s = (q @ k.mT).masked_fill(hidden(x.shape[1]), -1e4) + m.triangle[: x.shape[1], : x.shape[1]]
        return merged(s.softmax(-1) @ v)

    _, result = fused(function, canonical_rules, torch.float32)
    assert SDPA in [op_name(node.target) for node in result.exported.graph.nodes]


def test_padding_is_seen_by_every_head(canonical_rules: tuple[Rule, ...]) -> None:
    keep = torch.ones(2, 7, dtype=torch.int64)
    keep[1, 4:] = 0
    padded = batched(lambda m, s, n, keep: s.masked_fill(~keep.bool()[:, None, None, :], -math.inf))
    _, result = fused(padded, canonical_rules, torch.float32, keep)
    assert attention(result)[0] is not None
