"""Generates random values for the operands of a program: ordinary, very large or small, at edges, and special."""

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
"""The kinds of values that do not overflow and for which rounding errors stay small."""

OVERFLOWING = frozenset({"far edge", "large", "shifted", "huge", "squares", "overflowing", "greatest"})
"""The kinds of values that may overflow even in float64."""

HUGE = 1e3
"""The scale of `huge` values. exp overflows for them in every dtype; in float64, only for some of the values."""

_SCALES = {"large": LARGE, "tiny": 1e-3, "zero": 0.0, "huge": HUGE}
_POWERS = {"squares": 0.495, "overflowing": 0.6, "greatest": 0.999}
"""Maps kinds of values to exponents. The values reach the largest number of a dtype raised to the exponent: sums of
squares overflow for `squares`, squares for `overflowing`, and sums for `greatest`."""

_SPECIALS = (0.0, -0.0, 1.5, torch.inf, -torch.inf, torch.nan)
"""The values of `special` operands. For two operands, each pair of these values occurs at some element."""

_SPECIAL = {"NaN": (torch.nan,), "infinite": (torch.inf, -torch.inf)}
_RANGE = 9
"""The exclusive upper bound of random integers. It is large enough for values to differ, and small enough that the
values are valid indices into the tensors of examples."""


_LARGE = 1 << 26
"""The number of elements above which a tensor repeats its first rows: a random element takes up to 32 bytes more."""

_ROWS = 4
"""The smallest number of rows to draw, so that rows of different magnitudes occur in `tiny` values."""

ANY = Domain()
"""The domain of all floating-point values."""


@dataclass(frozen=True)
class Operands:
    """A set of random operands: one tensor per operand, and a description of how the tensors were generated."""

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
    """Returns one set of random operands: a tensor for each spec.

    Args:
        specs: the names, dtypes and shapes of the operands.
        size: the smallest symbolic size. Each further size is greater by 2, so that all sizes are distinct.
        values: the kind of floating-point values. `random` is standard normal. `tiny`, `zero`, `large` and `huge` are
            scaled normal values. `shifted` values are close to one number. `squares`, `overflowing` and `greatest` have
            the magnitudes at which sums of squares, squares and sums overflow. `edge` and `far edge` are the edges of
            edges.py near 0 and far from 0. `NaN` and `infinite` have a few such elements among random elements.
            `special` has zeros, infinities, NaN and a number, in all combinations for two operands. `non-contiguous`
            has a gap after every element. Bool tensors are random except for `false` and `true`. Integers are random
            from 0 to 8 except for `zero`. If `edges` says that integers are used as numbers, `large` integers have both
            signs and `greatest` integers cover the whole range of the dtype.
        seed: the seed of the generator. The same arguments give the same values.
        device: the device on which to generate the values. A GPU is much faster than a CPU.
        edges: the literals of a program and its use of integers.
        domain: the floating-point values that may occur.
        long: the name of one symbolic size, and its value, which overrides `size`. None to override no size.
    """
    generator = torch.Generator(device).manual_seed(seed)
    sizes: dict[str, int] = dict([long] if long else [])
    for spec in specs:
        for dim in spec.dims():
            sizes.setdefault(dim.name, size + 2 * len(sizes))
    drawn = (_operand(spec, spec.sizes(sizes), generator, values, edges, place) for place, spec in enumerate(specs))
    tensors = tuple(within(one, domain) for one in drawn)
    return Operands(tensors, f"{values} values")


def _operand(
    spec: TensorSpec, shape: tuple[int, ...], generator: torch.Generator, values: Values, edges: Edges, place: int
) -> Tensor:
    """Returns a random tensor. If it is large, only its first rows are random, and the others repeat them.

    Along the first axis of a large tensor, the largest element is then not unique.
    """
    rows = shape[0] if shape else 0
    drawn = min(rows, max(_ROWS, rows * _LARGE // max(torch.Size(shape).numel(), 1)))
    tensor = _draw(spec, (drawn, *shape[1:]) if rows else shape, generator, values, edges, place)
    if drawn < rows:
        tensor = tensor.repeat(-(-rows // drawn), *[1] * (len(shape) - 1))[:rows]
    if values == "non-contiguous" and (tensor.is_floating_point() or tensor.is_complex()):
        tensor = torch.stack((tensor, torch.full_like(tensor, torch.nan)), -1)[..., 0]
    return tensor


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
    if (
        values == "tiny" and shape and (scales := edges.scales())
    ):  # rows near the numbers that are added to them or bound them
        rows = torch.tensor([1.0, *(one / _SCALES["tiny"] for one in scales)], dtype=torch.float64)
        at = torch.arange(shape[0]) % len(rows)
        drawn = drawn * rows[at].reshape(-1, *[1] * (len(shape) - 1)).to(drawn.device)
    drawn = drawn * _SCALES.get(values, 1.0) + (HUGE if values == "shifted" else 0.0)
    # A random offset, so that the NaN and infinities of one operand also meet ordinary numbers of the other.
    first = int(torch.randint(0, 4, (), generator=generator, device=generator.device)) if values in _SPECIAL else 0
    for offset, special in enumerate(_SPECIAL.get(values, ())):
        drawn.view(-1)[first + offset * 4 :: 11] = special
    return drawn.to(dtype)


def within(tensor: Tensor, domain: Domain) -> Tensor:
    """Returns a tensor scaled down, if necessary, so that its finite elements are within the domain.

    If the domain is finite, infinities are replaced with 1. Other dtypes than floats are returned as they are.
    """
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
    """Returns a tensor of randomly ordered elements of a pool, in which all elements are equally frequent."""
    count = torch.Size(shape).numel()
    first = torch.randperm(len(pool), generator=generator, device=generator.device)
    order = torch.randperm(count, generator=generator, device=generator.device)
    return pool.to(generator.device)[first[order % len(pool)]].reshape(shape)


def differing(dtypes: Collection[str], edges: Edges) -> Collection[Values]:
    """Returns the kinds of values that are worth testing for operands of the given dtypes.

    `false` and `true` are omitted without bool operands, and `far edge` without large literals. `greatest` is omitted
    for programs that sum, because sums may overflow in one order but not in another. The kinds that overflow are
    omitted for float64, because no wider dtype can serve as the reference.
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
    """Returns whether a replacement must agree with the matched ops on this kind of values.

    Attention is exempt from values that give NaN or infinities: its kernels skip masked positions, where the matched
    ops compute 0 * NaN, and give no weight to scores that are not finite. Rules that generate new dropout masks are
    exempt from overflowing values, because an infinite result does not show whether an element was dropped.
    """
    if rule.draws == "any":
        return values not in ("special", "squares", "overflowing", "greatest")
    attends = any("scaled_dot_product_attention" in str(node.target) for node in after.nodes)
    return not attends or values not in ("NaN", "infinite", "special", "squares", "overflowing", "greatest")


def described(specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> Iterator[str]:
    """Yields the type of each operand as text, such as `x: f64[5, 8]`, with the strides if it is not contiguous."""
    for spec, tensor in zip(specs, tensors, strict=True):
        strides = "" if tensor.is_contiguous() else f" of strides {list(tensor.stride())}"
        yield f"{spec.name}: {spec.dtype}{list(tensor.shape)}{strides}"
