"""Attention however its scores are computed: added to, scaled and hidden in any order, it is one op or says why not.

Each row is a spelling, captured at one size. Its numbers are compared at others, with all hidden in some rows.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

pytestmark = pytest.mark.spellings

HEADS, WIDTH = 4, 8
SCALE = 1 / math.sqrt(WIDTH)
SDPA = "scaled_dot_product_attention"
BATCH, LENGTH = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=63)
LEFT = ("softmax", "matmul", "bmm", "mm", "einsum")


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(HEADS, 1, 1)
WINDOWS = torch.zeros(3, 7, 7)
WINDOWS[0, :3, 3:] = -100.0
TABLE = drawn(HEADS, 7, 7, seed=9)
MIX = drawn(HEADS, HEADS, seed=8)


class Model(torch.nn.Module):
    """softmax(scores) v, as `function` says."""

    def __init__(self, function: Callable[..., Any], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.function = function
        for name, tensor in {"slopes": SLOPES, "windows": WINDOWS, "table": TABLE, "mix": MIX}.items():
            self.register_buffer(name, tensor.to(dtype))

    def forward(self, *inputs: Tensor) -> tuple[Any]:
        return (self.function(self, *inputs),)


def heads(batch: int = 2, length: int = 7, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return tuple(drawn(batch, HEADS, length, WIDTH, seed=seed + at, dtype=dtype) for at in range(3))


def captured(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], dims: Any, dtype: torch.dtype = torch.float32
) -> Program:
    return programs.program(Model(function, dtype), inputs, (dims,))


def fused(program: Program, rules: Sequence[Rule], *others: tuple[Tensor, ...]) -> tuple[Program, Plan]:
    """Rewrites a program, and compares it on its own inputs and on others; returns it with its plan."""
    found = plan(program, rules, device="cpu", targets=())
    result = rewrite(program, found)
    for inputs in (program.examples, *others):
        with torch.no_grad():
            rows = map(
                compare, programs.run(result, inputs), programs.run(program, inputs), run_in_float64(program, inputs)
            )
            assert [row.reason for row in rows if not row.ok] == []
    return result, found


def called(program: Program) -> list[str]:
    nodes = (node for node in program.exported.graph.nodes if node.op == "call_function")
    return [op_name(node.target).removeprefix("aten.").partition(".")[0] for node in nodes]


def is_one_op(program: Program) -> bool:
    ops = called(program)
    return ops.count(SDPA) == 1 and not set(LEFT) & set(ops)


def future(x: Tensor) -> Tensor:
    return torch.ones(x.shape[-2], x.shape[-2]).triu(1).bool()


def distance(x: Tensor) -> Tensor:
    at = torch.arange(x.shape[-2])
    return (at[:, None] - at[None]).abs().to(x.dtype)


def by(
    change: Callable[[Any, Tensor, Tensor], Tensor],
    product: Callable[[Tensor, Tensor], Tensor] = lambda q, k: q @ k.mT * SCALE,
) -> Callable[..., Tensor]:
    return lambda m, q, k, v: change(m, product(q, k), q).softmax(-1) @ v


def by_hand(greatest: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def function(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = q @ k.mT * SCALE + m.slopes
        e = (s - greatest(s)).exp()
        return e / e.sum(-1, keepdim=True) @ v

    return function


def normed(q: Tensor, k: Tensor) -> Tensor:
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT


SPELLINGS = {
    "scale after two biases": by(lambda m, s, q: (s + m.slopes * distance(q) - m.slopes) / 3),
    "bias less scores": by(lambda m, s, q: m.slopes * distance(q) - s),
    "numbers everywhere": lambda m, q, k, v: ((q * 0.5) @ (k / 2).mT * 3 / 7).softmax(-1) @ v,
    "bias of heads, of keys, of pairs": by(lambda m, s, q: s + m.slopes + distance(q)[0] + distance(q)),
    "a shift": by(lambda m, s, q: s + 1e-6),
    "bias, hidden by -inf": by(lambda m, s, q: (s - m.slopes * distance(q)).masked_fill(future(q), -math.inf)),
    "bias, hidden by -1e9": by(lambda m, s, q: (s - m.slopes * distance(q)).masked_fill(future(q), -1e9)),
    "hidden by -inf, bias": by(lambda m, s, q: s.masked_fill(future(q), -math.inf) - m.slopes * distance(q)),
    "hidden by min, bias, scale": by(
        lambda m, s, q: (s.masked_fill(future(q), torch.finfo(s.dtype).min) + m.slopes) * 0.5
    ),
    "hidden twice": by(
        lambda m, s, q: (s.masked_fill(future(q), -math.inf) + m.slopes).masked_fill(distance(q) > 3, -math.inf)
    ),
    "where, full_like": by(lambda m, s, q: torch.where(~future(q), s, torch.full_like(s, -math.inf))),
    "where, full": by(lambda m, s, q: torch.where(future(q), torch.full((), -math.inf), s)),
    "cosine": by(lambda m, s, q: s * m.slopes.exp() + m.slopes * distance(q), normed),
    "cosine, divided": by(lambda m, s, q: s / m.slopes.exp(), normed),
    "softmax by hand": by_hand(lambda s: s.amax(-1, keepdim=True)),
    "softmax by hand, max": by_hand(lambda s: s.max(-1, keepdim=True).values),
    "softmax less max": by(lambda m, s, q: s - s.amax(-1, keepdim=True)),
    "log_softmax": lambda m, q, k, v: (q @ k.mT).log_softmax(-1).exp() @ v,
    "scores transposed": lambda m, q, k, v: (k @ q.mT * SCALE + m.slopes).softmax(-2).mT @ v,
    "values before weights": lambda m, q, k, v: (v.mT @ (q @ k.mT).softmax(-1).mT).mT.sum(1),
    "values before columns": lambda m, q, k, v: (v.mT @ (k @ q.mT).softmax(-2)).mT.sum(1),
    "einsum": lambda m, q, k, v: torch.einsum("bhqk,bhkd->bqhd", torch.einsum("bhqd,bhkd->bhqk", q, k).softmax(-1), v),
    "einsum, keys first": lambda m, q, k, v: torch.einsum(
        "bhkq,bhkd->bhqd", torch.einsum("...id,...jd->...ji", q, k).softmax(-2), v
    ),
    "baddbmm": lambda m, q, k, v: (
        torch.baddbmm(distance(q), q.flatten(0, 1), k.flatten(0, 1).mT, beta=0.5, alpha=SCALE)
        .softmax(-1)
        .bmm(v.flatten(0, 1))
        .unflatten(0, (-1, HEADS))
    ),
    "bias through a view": by(
        lambda m, s, q: ((s + m.slopes).view(-1, 1, HEADS, *s.shape[2:]) - distance(q)).view(-1, HEADS, *s.shape[2:])
    ),
    "dropout that is off": lambda m, q, k, v: F.dropout((q @ k.mT).softmax(-1), 0.1, training=False) @ v,
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_ends_as_one_op(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    program = captured(SPELLINGS[name], heads(), tuple({0: BATCH, 2: LENGTH} for _ in range(3)))
    result, _ = fused(program, canonical_rules, heads(batch=3, length=5, seed=5))
    assert is_one_op(result), called(result)


SHARED = {
    "by heads": ("bhid,bjd->bhij", "bhij,bjd->bhid"),
    "by heads, then by positions": ("bhid,bjd->bhij", "bhij,bjd->bihd"),
    "by positions": ("bihd,bjd->bhij", "bhij,bjd->bihd"),
    "by positions, then by heads": ("bihd,bjd->bhij", "bhij,bjd->bhid"),
}
"""Keys and values without an axis of heads, as in PaLM."""


@pytest.mark.parametrize("name", SHARED)
def test_keys_without_heads_are_shared(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    scores, values = SHARED[name]
    queries = (lambda q: q.transpose(1, 2)) if scores.startswith("bihd") else lambda q: q

    def function(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        s = torch.einsum(scores, queries(q), k[:, 0]) * SCALE
        return torch.einsum(values, s.masked_fill(future(q), -math.inf).softmax(-1), v[:, 0]).flatten(2)

    program = captured(function, heads(), tuple({0: BATCH, 2: LENGTH} for _ in range(3)))
    result, _ = fused(program, canonical_rules, heads(batch=3, length=5, seed=5))
    assert is_one_op(result), called(result)


@pytest.mark.parametrize("axis", [2, -2])
def test_heads_may_be_last(axis: int, canonical_rules: tuple[Rule, ...]) -> None:
    def function(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        weights = (torch.einsum("bihd,bjhd->bijh", q, k) * SCALE).softmax(axis)
        return torch.einsum("bijh,bjhd->bihd", weights, v).flatten(2)

    program = captured(function, heads(), tuple({0: BATCH, 2: LENGTH} for _ in range(3)))
    result, _ = fused(program, canonical_rules, heads(batch=3, length=5, seed=5))
    assert is_one_op(result), called(result)


def added(low: Callable[[Tensor], float]) -> Callable[..., Tensor]:
    return lambda m, s, keep: s + (1 - keep.to(s.dtype)) * low(s)


def least(s: Tensor) -> float:
    return torch.finfo(s.dtype).min


PADDED = {
    "filled with -inf": lambda m, s, keep: s.masked_fill(~keep, -math.inf),
    "filled with -1e9": lambda m, s, keep: s.masked_fill(~keep, -1e9),
    "filled, then scaled": lambda m, s, keep: s.masked_fill(~keep, -math.inf) * SCALE,
    "zeros filled with -inf": lambda m, s, keep: (
        s + torch.zeros(keep.shape, dtype=s.dtype).masked_fill(~keep, -math.inf)
    ),
    "the logarithm": lambda m, s, keep: s + keep.to(s.dtype).log(),
    "-1e4 times": added(lambda s: -1e4),
    "min times": added(least),
    "min, causal too": lambda m, s, keep: added(least)(m, s.masked_fill(future(s), least(s)), keep),
    "-inf, causal too": lambda m, s, keep: s.masked_fill(~keep, -math.inf).masked_fill(future(s), -math.inf),
    "-1e9 after a bias": lambda m, s, keep: (s + m.slopes * 0.1).masked_fill(~keep, -1e9),
    "-inf between biases": lambda m, s, keep: (s + m.slopes).masked_fill(~keep, -math.inf) + m.slopes,
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", PADDED)
def test_rows_that_are_all_hidden_stay_as_they_are(
    name: str, dtype: torch.dtype, canonical_rules: tuple[Rule, ...]
) -> None:
    def function(m: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return PADDED[name](m, q @ k.mT * SCALE, keep[:, None, None]).softmax(-1) @ v

    keep = torch.ones(2, 7, dtype=torch.bool)
    keep[1, 4:] = False
    nothing = keep.clone()
    nothing[1] = False
    dims = (*({0: BATCH, 2: LENGTH} for _ in range(3)), {0: BATCH, 1: LENGTH})
    program = captured(function, (*heads(dtype=dtype), keep), dims, dtype)
    result, _ = fused(program, canonical_rules, (*heads(seed=5, dtype=dtype), nothing))
    assert is_one_op(result), called(result)


def filled_twice(size: int) -> Tensor:
    kept = (torch.triu(torch.ones(size, size)) == 1).transpose(0, 1)
    return kept.float().masked_fill(kept == 0, -math.inf).masked_fill(kept == 1, 0.0)


CAUSAL = {
    "-inf above the diagonal": lambda size: torch.full((size, size), -math.inf).triu(1),
    "after an empty cache": lambda size: torch.hstack(
        [torch.zeros(size, 0), torch.full((size, size), -math.inf).triu(1)]
    ),
    "zeros filled": lambda size: torch.zeros(size, size).masked_fill(torch.ones(size, size).triu(1).bool(), -math.inf),
    "filled twice": filled_twice,
}


@pytest.mark.parametrize("name", CAUSAL)
def test_a_causal_mask_of_any_length_is_not_computed(name: str, default_rules: tuple[Rule, ...]) -> None:
    """No query is without a key, for every length: nothing has to be filled with NaN, and no mask remains."""

    def function(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * SCALE + CAUSAL[name](q.shape[-2])).softmax(-1) @ v

    program = captured(function, heads(), tuple({2: LENGTH} for _ in range(3)))
    result, _ = fused(program, default_rules, heads(length=3, seed=5))
    assert called(result) == [SDPA]


def swin(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = q @ k.mT * SCALE + m.table
    return (s.view(-1, 3, HEADS, 7, 7) + m.windows[:, None]).view(-1, HEADS, 7, 7).softmax(-1) @ v


def one_key(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = torch.einsum("bhid,bjd->bhij", q, k) - m.slopes * distance(q)
    return torch.einsum("bhij,bjd->bhid", s.softmax(-1), v)


def repeated(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.repeat_interleave(2, 1).mT + m.slopes).softmax(-1) @ v.repeat_interleave(2, 1)


def biased(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * SCALE - distance(q)).softmax(-1) @ v


def of_channels(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(v, torch.bmm(q.permute(0, 2, 1), k).mul(SCALE).softmax(2).permute(0, 2, 1)).sum(1)


def of_images(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Relative positions of rows and columns that depend on the query, as in ViTDet and SAM."""
    places = q.view(-1, 2, 3, 8)
    rows, columns = places[..., :2].sin().unsqueeze(4), places[..., 2:5].cos().unsqueeze(3)
    return ((q @ k.mT * SCALE).view(-1, 2, 3, 2, 3) + rows + columns).view(-1, 6, 6).softmax(-1) @ v


RANKS: dict[str, tuple[Callable[..., Tensor], list[tuple[int, ...]], int]] = {
    "2": (lambda m, q, k, v: ((q @ k.T) * SCALE + torch.arange(5) * 0.1).softmax(-1) @ v, [(7, 8), (5, 8), (5, 8)], 1),
    "2, mm": (lambda m, q, k, v: torch.mm(torch.mm(q, k.t()).softmax(1), v), [(7, 8), (5, 8), (5, 8)], 1),
    "2, einsum": (
        lambda m, q, k, v: torch.einsum("ij,jd->id", torch.einsum("id,jd->ij", q, k).softmax(-1), v),
        [(7, 8), (5, 8), (5, 8)],
        1,
    ),
    "3": (biased, [(2, 7, 8)] * 3, 3),
    "3, channels first": (of_channels, [(2, 8, 7)] * 3, 3),
    "5": (lambda m, q, k, v: (q @ k.mT + m.slopes).softmax(-1) @ v, [(2, 3, HEADS, 7, 8)] * 3, 3),
    "windows": (swin, [(6, HEADS, 7, 8)] * 3, 0),
    "images": (of_images, [(2, 6, 8)] * 3, 3),
    "one key for all heads": (one_key, [(2, HEADS, 7, 8), (2, 7, 8), (2, 7, 8)], 3),
    "groups of heads": (repeated, [(2, HEADS, 7, 8), (2, 2, 7, 8), (2, 2, 7, 8)], 3),
}


@pytest.mark.parametrize("name", RANKS)
def test_queries_of_any_rank(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    function, shapes, dynamic = RANKS[name]
    inputs = tuple(drawn(*shape, seed=at) for at, shape in enumerate(shapes))
    dims = tuple({0: BATCH} if at < dynamic else {} for at in range(3))
    program = captured(function, inputs, dims)
    result, _ = fused(program, canonical_rules, *([] if not dynamic else [_more(inputs, dynamic)]))
    assert is_one_op(result), called(result)


def _more(inputs: tuple[Tensor, ...], dynamic: int) -> tuple[Tensor, ...]:
    return tuple(torch.cat([tensor, -tensor]) if at < dynamic else tensor for at, tensor in enumerate(inputs))


def returned(m: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    p = (q @ k.mT).softmax(-1)
    return p @ v + p.sum()


LEFT_ALONE = {
    "a cap": (by(lambda m, s, q: torch.tanh(s / 5) * 5), "aten.tanh.default"),
    "a clamp": (by(lambda m, s, q: s.clamp(-5e4, 5e4)), "aten.clamp.default"),
    "heads mixed before": (by(lambda m, s, q: torch.einsum("bhij,hg->bgij", s, m.mix)), "aten.einsum.default"),
    "heads mixed after": (
        lambda m, q, k, v: torch.einsum("bhij,hg->bgij", (q @ k.mT).softmax(-1), m.mix) @ v,
        "the users aten.einsum.default",
    ),
    "weights returned": (returned, "aten.sum.default"),
    "hidden by little": (by(lambda m, s, q: s.masked_fill(future(q), -5.0)), "a fill value of -10000 or less"),
    "a factor of keys": (by(lambda m, s, q: s * (distance(q) + 1)), "a factor that is the same for all keys"),
    "a factor that is a size": (by(lambda m, s, q: s * q.shape[2]), "found aten.mul"),
    "a softmax of all pairs": (
        lambda m, q, k, v: (q @ k.mT).flatten(2).softmax(-1).view(q.shape[0], HEADS, q.shape[2], k.shape[2]) @ v,
        "the key axis",
    ),
    "two finite masks": (
        by(lambda m, s, q: s.masked_fill(future(q), -1e9) + (distance(q) > 3).to(s.dtype) * -1e9),
        "one mask of finite numbers",
    ),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_attention_cannot_say_is_left_with_the_reason(name: str, canonical_rules: tuple[Rule, ...]) -> None:
    function, reason = LEFT_ALONE[name]
    program = captured(function, heads(), tuple({0: BATCH, 2: LENGTH} for _ in range(3)))
    result, found = fused(program, canonical_rules)
    assert SDPA not in called(result)
    assert any(reason in miss.reason for miss in found.misses if miss.rule == "attention")
