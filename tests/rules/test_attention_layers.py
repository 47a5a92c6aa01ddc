"""Attention as layers spell it: projected, split into heads, masked, merged again; batch and length may vary.

Each row is one spelling, and what must be left: one attention op in its smallest form, and the right numbers, also
where all keys are hidden from a query and where the mask was written in place.
"""

import math
from collections.abc import Callable

import pytest
import torch
from support import programs
from support.attention import DIM, HEADS, SDPA, WIDTH, Layer, attention, fused, merged
from torch import Tensor
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings


def scored(
    change: Callable[..., Tensor], softmax: Callable[[Tensor], Tensor] = lambda s: s.softmax(-1)
) -> Callable[..., Tensor]:
    def function(m: Layer, x: Tensor, *rest: Tensor) -> Tensor:
        q, k, v = m.heads(x)
        return merged(softmax(change(m, q @ k.transpose(-2, -1) / math.sqrt(WIDTH), x.shape[1], *rest)) @ v)

    return function


def places(n: int) -> tuple[Tensor, Tensor]:
    return torch.arange(n)[:, None], torch.arange(n)[None, :]


def written(m: Layer, s: Tensor, n: int) -> Tensor:
    mask = torch.full((n, n), torch.finfo(s.dtype).min)
    at = torch.arange(n)
    mask.masked_fill_(at < (at + 1).view(n, 1), 0)
    return s + mask.to(s.dtype)


def alibi(m: Layer, s: Tensor, n: int) -> Tensor:
    query, key = places(n)
    return (s - m.slopes * (query - key).abs().to(s.dtype)).masked_fill(torch.ones(n, n).tril() == 0, -math.inf)


def in_half(s: Tensor) -> Tensor:
    return s.softmax(-1, dtype=torch.float32).to(s.dtype)


def upcast(s: Tensor) -> Tensor:
    return s.float().softmax(-1).type_as(s)


FREE = {
    "plain": scored(lambda m, s, n: s),
    "softmax in f32": scored(lambda m, s, n: s, in_half),
    "scores in f32": scored(lambda m, s, n: s, upcast),
    "einsum by position": lambda m, x: torch.einsum(
        "bhqk,bkhd->bqhd",
        torch.einsum("bqhd,bkhd->bhqk", *(part.transpose(1, 2) for part in m.heads(x)[:2])).softmax(-1),
        m.heads(x)[2].transpose(1, 2),
    ).reshape(x.shape),
    "einsum by channel": lambda m, x: F.linear(
        torch.einsum(
            "bts,bcs->bct",
            torch.einsum("bct,bcs->bts", *(part.mT for part in m.project(x).chunk(3, -1)[:2])).softmax(-1),
            m.project(x).chunk(3, -1)[2].mT,
        ).mT,
        m.project.weight[:DIM],
    ),
    "baddbmm": lambda m, x: (
        torch.baddbmm(
            torch.empty(x.shape[0], x.shape[1], x.shape[1], dtype=x.dtype),
            *(m.project(x)[..., :DIM], m.project(x)[..., DIM : 2 * DIM].mT),
            beta=0,
            alpha=0.25,
        ).softmax(-1)
        @ m.project(x)[..., 2 * DIM :]
    ),
}
CAUSAL = {
    "buffer == 0": scored(lambda m, s, n: s.masked_fill(m.triangle[:n, :n] == 0, -math.inf)),
    "buffer < 0.5": scored(lambda m, s, n: s.masked_fill(m.triangle[:n, :n] < 0.5, -1e9)),
    "buffer != 1, -1e4": scored(lambda m, s, n: s.masked_fill(m.triangle[:n, :n] != 1, -1e4)),
    "not a buffer": scored(lambda m, s, n: s.masked_fill(~m.allowed[:, :, :n, :n], -math.inf)),
    "where, full of min": scored(
        lambda m, s, n: torch.where(m.allowed[:, :, :n, :n], s, torch.full([], torch.finfo(s.dtype).min, dtype=s.dtype))
    ),
    "added buffer": scored(lambda m, s, n: s + m.future[:n, :n]),
    "1 - buffer": scored(lambda m, s, n: s + (1.0 - m.triangle[:n, :n]) * -1e4),
    "arange": scored(lambda m, s, n: s.masked_fill(places(n)[1] > places(n)[0], -math.inf)),
    "triu of bool": scored(lambda m, s, n: s.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -math.inf)),
    "triu in place": scored(lambda m, s, n: s + torch.full((n, n), -math.inf, dtype=s.dtype).triu_(1)),
    "triu transposed": scored(lambda m, s, n: s.masked_fill(torch.ones(n, n).triu().T == 0, -math.inf)),
    "filled in place": scored(lambda m, s, n: s.masked_fill_(torch.ones(n, n).triu(1).bool(), -math.inf)),
    "written in place": scored(written),
    "two masks": scored(lambda m, s, n: s + torch.zeros(n, n, dtype=s.dtype) + m.future[:n, :n]),
}
KEPT = {
    "alibi": scored(alibi),
    "window": scored(
        lambda m, s, n: s.masked_fill((places(n)[1] > places(n)[0]) | (places(n)[0] - places(n)[1] >= 3), -math.inf)
    ),
}


def keyed(change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return scored(lambda m, s, n, keep: change(s, keep.bool()[:, None, None, :]))


PADDED = {
    "-inf": keyed(lambda s, keep: s.masked_fill(~keep, -math.inf)),
    "-1e4": keyed(lambda s, keep: s.masked_fill(~keep, -1e4)),
    "-1e9": keyed(lambda s, keep: s.masked_fill(~keep, -1e9)),
    "min": keyed(lambda s, keep: torch.where(keep, s, torch.finfo(s.dtype).min)),
    "expanded": keyed(lambda s, keep: s.masked_fill((~keep).expand_as(s), torch.finfo(s.dtype).min)),
    "added": keyed(lambda s, keep: s + (1.0 - keep.to(s.dtype)) * -10000.0),
    "and causal": keyed(
        lambda s, keep: s.masked_fill(~(keep & torch.ones(s.shape[-1], s.shape[-1]).tril().bool()), -math.inf)
    ),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FREE)
def test_a_layer_without_a_mask_is_one_op(name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]) -> None:
    assert attention(fused(FREE[name], canonical_rules, dtype)[1]) == (None, 0.0, False)


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_layer_has_a_flag_and_no_mask(
    name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]
) -> None:
    result = fused(CAUSAL[name], canonical_rules, dtype)[1]
    assert attention(result) == (None, 0.0, True)
    assert not [node for node in result.exported.graph.nodes if "masked_fill" in str(node.target)]


@pytest.mark.parametrize("name", KEPT)
def test_a_mask_that_says_more_stays(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    mask, _, causal = attention(fused(KEPT[name], canonical_rules, torch.float32)[1])
    assert mask is not None
    assert not causal


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PADDED)
def test_padding_stays_a_mask_also_where_all_is_hidden(
    name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]
) -> None:
    keep = torch.ones(2, 7, dtype=torch.int64)
    keep[1, 4:] = 0
    program, result = fused(PADDED[name], canonical_rules, dtype, keep)
    assert attention(result)[0] is not None
    inputs = (program.examples[0], torch.zeros_like(keep))
    with torch.no_grad():
        (actual,), (expected,) = programs.run(result, inputs), programs.run(program, inputs)
    if name != "added":  # what is added to all alike leaves the scores, and their last digits differ
        assert compare(actual, expected, run_in_float64(program, inputs)[0]).ok


def one_key_and_value(m: Layer, x: Tensor) -> Tensor:
    q, _, _ = m.heads(x)
    k, v = m.few(x).unsqueeze(1).chunk(2, -1)
    return merged((q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v)


def repeated_by_position(m: Layer, x: Tensor) -> Tensor:
    q, k, v = (part.transpose(1, 2) for part in m.heads(x))
    k, v = (part[:, :, :2, None].expand(-1, -1, -1, 2, -1).reshape(*x.shape[:2], HEADS, WIDTH) for part in (k, v))
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return merged((q @ k.mT / math.sqrt(WIDTH)).softmax(-1) @ v)


@pytest.mark.parametrize("function", [one_key_and_value, repeated_by_position], ids=lambda one: one.__name__)
def test_shared_keys_are_read_in_place(function: Callable[..., Tensor], canonical_rules: tuple[Rule, ...]) -> None:
    _, result = fused(function, canonical_rules, torch.float32)
    (node,) = (node for node in result.exported.graph.nodes if op_name(node.target) == SDPA)
    assert node.kwargs["enable_gqa"] is True


def set_item(m: Layer, s: Tensor, n: int) -> Tensor:
    mask = torch.ones(n, n, dtype=torch.bool)
    mask[:, 0] = False
    return s.masked_fill(~mask, -math.inf)


def through_a_view(m: Layer, s: Tensor, n: int) -> Tensor:
    mask = torch.ones(n, n, dtype=torch.bool)
    mask.view(-1)[1:3] = False
    return s.masked_fill(~mask, -1e9)


@pytest.mark.parametrize("change", [set_item, through_a_view], ids=lambda one: one.__name__)
def test_a_mask_written_through_a_view_is_not_what_it_was_made_as(
    change: Callable[..., Tensor], canonical_rules: tuple[Rule, ...]
) -> None:
    assert attention(fused(scored(change), canonical_rules, torch.float32)[1])[0] is not None


def test_an_attention_layout_is_not_relied_upon(canonical_rules: tuple[Rule, ...]) -> None:
    """Which kernel runs, and so what strides come out, depends on whether gradients are needed."""
    _, result = fused(scored(lambda m, s, n: s + F.relu(m.slopes)), canonical_rules, torch.float32)
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert not {"aten.view.default", "aten.unflatten.int"} & set(called[called.index(SDPA) :])
    programs.run(result)
