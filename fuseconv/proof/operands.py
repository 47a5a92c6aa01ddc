"""Values for the operands of a program: ordinary, of every magnitude, at the edges of what ops tell apart, special."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.fx import Graph

from fuseconv.contract.inputs import torch_dtype
from fuseconv.contract.spec import TensorSpec
from fuseconv.contract.values import LARGE
from fuseconv.proof.edges import NEAR, NOTHING, Edges, integer_edges, near_edges
from fuseconv.rulebook.rule import Domain, Rule

Values = Literal[
    "random",
    "non-contiguous",
    "tiny",
    "zero",
    "edge",
    "far edge",
    "large",
    "shifted",
    "huge",
    "overflowing",
    "greatest",
    "NaN",
    "infinite",
    "special",
    "false",
    "true",
    "squares",
]
VALUES: tuple[Values, ...] = get_args(Values)

ORDINARY = frozenset({"random", "non-contiguous"})
"""Values of which nothing overflows, and no difference is that of one rounding."""

OVERFLOWING = frozenset({"far edge", "large", "shifted", "huge", "squares", "overflowing", "greatest"})
"""Values of which what is computed may overflow, even in float64."""

HUGE = 1e3
"""Beyond it exp overflows in every dtype but float64, and at some of it there."""

_SCALES = {"large": LARGE, "tiny": 1e-3, "zero": 0.0, "huge": HUGE}
_POWERS = {"squares": 0.495, "overflowing": 0.6, "greatest": 0.999}
"""Powers of the greatest number of a dtype: sums of squares of the first overflow, squares of the second, sums of the
last."""

_SPECIALS = (0.0, -0.0, 1.5, torch.inf, -torch.inf, torch.nan)
"""Of two operands each of these meets each of them at some element."""

_SPECIAL = {"NaN": (torch.nan,), "infinite": (torch.inf, -torch.inf)}
_RANGE = 9
"""Integers are drawn below it: large enough to differ, small enough to index the sizes of examples."""


ANY = Domain()
"""Every floating value."""


@dataclass(frozen=True)
class Operands:
    """One tensor for each operand, and the words for how they were drawn."""

    tensors: tuple[Tensor, ...]
    drawn: str


def draw_operands(
    specs: Sequence[TensorSpec],
    size: int,
    values: Values,
    seed: int,
    device: torch.device | str = "cpu",
    edges: Edges = NOTHING,
    domain: Domain = ANY,
    long: tuple[str, int] | None = None,
) -> Operands:
    """Draws a tensor for each operand.

    Args:
        specs: names, dtypes and shapes.
        size: the least symbolic size; the next one is greater by 2, and so on, so that no two are equal.
        values: of floating tensors, random are standard normal, and tiny, zero, large and huge are that, multiplied,
            and shifted are all near one number; squares, overflowing and greatest ones are of the magnitude at which
            sums of squares, squares and sums overflow in their dtype; edge values are those of edges.py, and far edge
            those that are far from 0; of NaN and infinite ones a few elements are, the others are random; of special
            ones each is zero, infinite, NaN or a number, and of two operands each of these meets each of them at some
            element; non-contiguous ones have a gap after every element. Bool tensors are random, but for `false` and
            `true`, of which nothing else is drawn. Integers are random from 0 to 8, but for zero; where `edges` says
            that they are numbers, large ones are of both signs, greatest of the whole dtype.
        seed: of the generator: the same call draws the same.
        device: where to draw. A GPU draws in a moment what takes a CPU seconds.
        edges: the literals of a program, and what its integers are.
        domain: the floats that may be drawn.
        long: a symbolic size, and what it is.
    """
    generator = torch.Generator(device).manual_seed(seed)
    sizes: dict[str, int] = dict([long] if long else [])
    for spec in specs:
        for dim in spec.dims():
            sizes.setdefault(dim.name, size + 2 * len(sizes))
    drawn = (_draw(spec, spec.sizes(sizes), generator, values, edges, place) for place, spec in enumerate(specs))
    tensors = tuple(within(one, domain) for one in drawn)
    return Operands(tensors, f"{values} values")


def _draw(
    spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, values: Values, edges: Edges, place: int
) -> Tensor:
    dtype = torch_dtype(spec.dtype)
    if not dtype.is_floating_point and not dtype.is_complex:
        return _integers(dtype, shape, generator, values, edges)
    if values == "special":
        count = len(_SPECIALS)
        element = torch.arange(torch.Size(shape).numel(), device=generator.device)
        which = (element * place + element // count) % count if place else element % count
        return torch.tensor(_SPECIALS, device=generator.device)[which].reshape(shape).to(dtype)
    if values in ("edge", "far edge") and dtype.is_floating_point and (pool := near_edges(edges, dtype, values)):
        return _of_pool(torch.tensor(pool, dtype=torch.float64), shape, generator).to(dtype)
    drawn = torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float64)
    if values in _POWERS and dtype.is_floating_point:
        drawn = drawn.tanh() * torch.finfo(dtype).max ** _POWERS[values]
    if values == "tiny" and shape and (scales := edges.scales()):  # rows beside what is added to them, or bounds them
        rows = torch.tensor([1.0, *(one / _SCALES["tiny"] for one in scales)], dtype=torch.float64)
        at = torch.arange(shape[0]) % len(rows)
        drawn = drawn * rows[at].reshape(-1, *[1] * (len(shape) - 1)).to(drawn.device)
    drawn = drawn * _SCALES.get(values, 1.0) + (HUGE if values == "shifted" else 0.0)
    # Of two operands others are special: an op of a number and NaN is not one of two NaN.
    first = int(torch.randint(0, 4, (), generator=generator, device=generator.device)) if values in _SPECIAL else 0
    for offset, special in enumerate(_SPECIAL.get(values, ())):
        drawn.view(-1)[first + offset * 4 :: 11] = special
    tensor = drawn.to(dtype)
    if values == "non-contiguous":
        tensor = torch.stack((tensor, torch.full_like(tensor, torch.nan)), -1)[..., 0]
    return tensor


def within(tensor: Tensor, domain: Domain) -> Tensor:
    """Scales floats beyond a magnitude down to it; what is infinite stays, or where it may not be is 1."""
    if not tensor.is_floating_point():
        return tensor
    if domain.finite and bool(tensor.isinf().any()):
        tensor = tensor.masked_fill(tensor.isinf(), 1.0)
    if domain.largest is None or domain.largest >= torch.finfo(tensor.dtype).max:
        return tensor
    found = float(tensor.nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0
    return tensor * (domain.largest / found) if found > domain.largest else tensor


def _integers(
    dtype: torch.dtype, shape: tuple[int, ...], generator: torch.Generator, values: Values, edges: Edges
) -> Tensor:
    low, high = 0, 2 if dtype == torch.bool else _RANGE
    if values == "zero" and dtype != torch.bool:
        return torch.zeros(shape, dtype=dtype, device=generator.device)
    if values in ("false", "true") and dtype == torch.bool:
        return torch.full(shape, values == "true", dtype=dtype, device=generator.device)
    if dtype != torch.bool and edges.integers != "indices" and values in (*OVERFLOWING, "edge"):
        pool = integer_edges(edges, dtype)
        if edges.integers != "signed" and values in ("edge", "far edge"):
            return _of_pool(torch.tensor(pool), shape, generator).to(dtype)
        whole = values == "greatest" and edges.integers != "signed"
        low, high = (pool[0], pool[-1]) if whole else (max(pool[0], -_RANGE), _RANGE)
    drawn = torch.randint(low, high, shape, generator=generator, device=generator.device).to(dtype)
    return drawn + (drawn == 0) if edges.integers == "divided" and dtype != torch.bool else drawn


def _of_pool(pool: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws elements of a pool, each as often as any other."""
    count = torch.Size(shape).numel()
    first = torch.randperm(len(pool), generator=generator, device=generator.device)
    order = torch.randperm(count, generator=generator, device=generator.device)
    return pool.to(generator.device)[first[order % len(pool)]].reshape(shape)


def differing(dtypes: Collection[str], edges: Edges) -> Collection[Values]:
    """Returns the values that differ for operands of some dtypes, and that can be judged.

    Near the greatest float sums overflow in one order and not in another; and of float64 there is no wider truth.
    """
    left_out: set[Values] = set()
    if "bool" not in dtypes:
        left_out |= {"false", "true"}
    if not any(abs(literal) > NEAR for literal in edges.literals):
        left_out.add("far edge")
    if "f64" in dtypes:
        left_out |= {"squares", "overflowing", "greatest"}
    if edges.sums:
        left_out.add("greatest")
    return [values for values in VALUES if values not in left_out]


def takes(rule: Rule, after: Graph, values: Values) -> bool:
    """Whether what a rule puts in place is held to give what it replaces on such values.

    Attention kernels leave out what is hidden: there 0 times NaN is 0, and scores that are not finite weigh nothing.
    What is drawn anew cannot be told apart where what is kept is infinite.
    """
    if rule.draws == "any":
        return values not in ("special", "squares", "overflowing", "greatest")
    attends = any("scaled_dot_product_attention" in str(node.target) for node in after.nodes)
    return not attends or values not in ("NaN", "infinite", "special", "squares", "overflowing", "greatest")


def described(specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> Iterator[str]:
    """Yields each operand as `x: f64[5, 8]`, with its strides where it is not contiguous."""
    for spec, tensor in zip(specs, tensors, strict=True):
        strides = "" if tensor.is_contiguous() else f" of strides {list(tensor.stride())}"
        yield f"{spec.name}: {spec.dtype}{list(tensor.shape)}{strides}"
