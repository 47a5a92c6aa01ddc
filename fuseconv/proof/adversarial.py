"""Generates adversarial operands: operands whose magnitudes, layouts and sizes differ from the examples.

An operand that does not depend on an input of the program, such as a weight, keeps its value from the model. All other
operands are random. An excerpt is one step of a plan in isolation; see ledger.py.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import sympy
import torch
from torch.fx import Graph, Node

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.spec import TensorSpec
from fuseconv.graph.all_sizes import key_of
from fuseconv.matching.graph import map_nodes, op_name
from fuseconv.proof.edges import Edges
from fuseconv.proof.ledger import Excerpt, Ledger
from fuseconv.proof.operands import ANY, Values, differing, draw_operands, takes
from fuseconv.rulebook.rule import Domain, Rule

Sizes = Literal["unlike", "equal", "one", "empty", "longest"]

LARGEST = 1 << 20
"""The maximum number of elements of a tensor when one size is as large as possible."""

FEW = 4
"""The number of rows of tensors that are shortened, so that a test takes less time. Rows of different magnitudes occur
in `tiny` values."""

LONG = 1 << 18
"""The number of elements of a tensor above which tensors of static sizes are shortened."""

_WORDS = {
    "unlike": "sizes unlike",
    "equal": "sizes made equal",
    "one": "smallest sizes",
    "empty": "sizes 0",
    "longest": "longest size",
}

_UNLIKE = (3, 5, 7, 11, 13)
_EQUAL = 4


@dataclass(frozen=True)
class Hard:
    """One way to generate adversarial operands.

    Attributes:
        values: the kind of values: a magnitude, special values, or a layout.
        sizes: how the symbolic sizes are chosen. `unlike`: small and distinct. `equal`: all equal, and equal to a
            static size, so that size does not distinguish the axes. `one`: the smallest allowed size above 0; 1
            broadcasts. `empty`: 0 where allowed, the others small and distinct. `longest`: one size as large as its
            range and `LARGEST` allow, the others small and distinct.
    """

    values: Values
    sizes: Sizes

    def __str__(self) -> str:
        return f"{self.values} values, {_WORDS[self.sizes]}"


HARD = (
    Hard("random", "one"),
    Hard("random", "equal"),
    Hard("random", "empty"),
    Hard("non-contiguous", "unlike"),
    Hard("large", "unlike"),
    Hard("tiny", "unlike"),
    Hard("edge", "unlike"),
    Hard("far edge", "unlike"),
    Hard("huge", "unlike"),
    Hard("greatest", "unlike"),
    Hard("NaN", "unlike"),
    Hard("infinite", "unlike"),
    Hard("special", "unlike"),
    Hard("random", "longest"),
)


def hard(ledger: Ledger, excerpt: Excerpt, rule: Rule, edges: Edges) -> Collection[Hard]:
    """Returns the elements of `HARD` on which the replacement must agree with the matched ops.

    If no operand of the excerpt has a symbolic size or stride, each kind of values is returned only once, because
    `Hard.sizes` then has no effect.

    Args:
        ledger: the ledger that contains the excerpt.
        excerpt: the excerpt to test.
        rule: the rule that the step of the excerpt applies.
        edges: the values at which ops of the excerpt change behavior.
    """
    fakes = [fake for fake in _varying(ledger, excerpt).values() if isinstance(fake, torch.Tensor)]
    apart = differing({SHORT_DTYPES.get(str(fake.dtype), "") for fake in fakes}, edges)
    taken = [how for how in HARD if how.values in apart and takes(rule, excerpt.after, how.values)]
    if any(_expression(size).free_symbols for fake in fakes for size in (*fake.shape, *fake.stride())):
        return taken
    return [how for at, how in enumerate(taken) if how.values not in {earlier.values for earlier in taken[:at]}]


def draws(
    ledger: Ledger, excerpt: Excerpt, captured: Sequence[Any], how: Hard, edges: Edges, domain: Domain = ANY
) -> Iterator[list[Any]]:
    """Yields at most two sets of random operands for an excerpt: shortened ones, then those of the program's sizes.

    Few rows show most faults in a fraction of the time, but a program that contains its number of rows as a literal is
    right only at that number. On CUDA devices, kernels depend on the sizes and take little time, so no operands are
    shortened there. The arguments are those of `draw`.
    """
    for rows in (FEW, None):
        if operands := draw(ledger, excerpt, captured, how, edges, domain, rows):
            yield operands


def draw(
    ledger: Ledger,
    excerpt: Excerpt,
    captured: Sequence[Any],
    how: Hard,
    edges: Edges,
    domain: Domain = ANY,
    rows: int | None = None,
) -> list[Any] | None:
    """Generates one set of random operands for an excerpt, or returns None if no such operands exist.

    None is returned if an operand that must be random is not a tensor or has a data-dependent size, or if the excerpt
    has no sizes of the kind that `how` requests, or if there is nothing to shorten.

    Args:
        ledger: the ledger that contains the excerpt.
        excerpt: the excerpt to test.
        captured: the values of the operands on the example inputs. Operands that do not depend on an input keep these
            values.
        how: the kinds of values and sizes to generate.
        edges: the values at which ops of the excerpt change behavior.
        domain: the floating-point values that may occur.
        rows: the number of rows of the operands that have the most rows. None for the number in the program.
    """
    fakes = _varying(ledger, excerpt)
    if not all(isinstance(fake, torch.Tensor) and not _unbacked(fake) for fake in fakes.values()):
        return None
    sizes = _sizes(fakes.values(), captured, ledger.workspace.ranges, how.sizes)
    inner = (node.meta.get("val") for node in excerpt.before.nodes)
    shapes = [one.shape for one in (*fakes.values(), *inner) if isinstance(one, torch.Tensor) and not _unbacked(one)]
    if how.sizes == "empty" and 0 not in sizes.values():
        return None
    if how.sizes == "longest" and not (sizes := _longest(sizes, shapes, ledger.workspace.ranges)):
        return None
    drawn_shapes = {node: [_number(size, sizes) for size in fake.shape] for node, fake in fakes.items()}
    if rows is not None and not (drawn_shapes := _shortened(drawn_shapes, fakes, captured, rows)):
        return None
    drawn = partial(_drawn, sizes=sizes, values=how.values, edges=edges, domain=domain)
    return [
        drawn(node, fakes[node], drawn_shapes[node], seed=seed, device=value.device) if node in fakes else value
        for seed, (node, value) in enumerate(zip(excerpt.operands, captured, strict=True))
    ]


def _varying(ledger: Ledger, excerpt: Excerpt) -> dict[Node, Any]:
    return {node: node.meta.get("val") for node in excerpt.operands if node in ledger.varying}


def _unbacked(fake: torch.Tensor) -> bool:
    return any(str(symbol).startswith("u") for size in fake.shape for symbol in _expression(size).free_symbols)


def _shortened(
    shapes: Mapping[Node, list[int]], fakes: Mapping[Node, torch.Tensor], captured: Sequence[Any], rows: int
) -> dict[Node, list[int]]:
    """Returns the shapes with at most `rows` rows in place of the largest number of rows, or {} if that saves nothing.

    The number of rows is the size of the first axis, which is the batch of most models. Only static sizes are
    shortened: symbolic sizes are what `Hard.sizes` requests.
    """
    counts = {node: fake.shape[0] for node, fake in fakes.items() if fake.dim() and isinstance(fake.shape[0], int)}
    most = max(counts.values(), default=0)
    if most <= rows or max(map(math.prod, shapes.values())) <= LONG or _on_cuda(captured):
        return {}
    return {node: [rows, *shape[1:]] if counts.get(node) == most else shape for node, shape in shapes.items()}


def _on_cuda(operands: Sequence[Any]) -> bool:
    return any(isinstance(one, torch.Tensor) and one.is_cuda for one in operands)


def _drawn(
    node: Node,
    fake: torch.Tensor,
    shape: Sequence[int],
    *,
    sizes: Mapping[Any, int],
    values: Values,
    edges: Edges,
    domain: Domain,
    seed: int,
    device: torch.device,
) -> torch.Tensor:
    """Returns a random tensor for an operand. Its axes have the same order in memory as in the program."""
    order = sorted(range(fake.dim()), key=lambda axis: -_number(fake.stride()[axis], sizes))
    spec = TensorSpec(node.name, SHORT_DTYPES[str(fake.dtype)], tuple(shape[axis] for axis in order))
    (tensor,) = draw_operands([spec], 0, values, seed, device, edges, domain).tensors
    return tensor.permute([order.index(axis) for axis in range(fake.dim())])


def _sizes(fakes: Collection[Any], captured: Sequence[Any], ranges: Mapping[Any, Any], how: Sizes) -> dict[Any, int]:
    expressions = [_expression(size) for fake in fakes for size in (*fake.shape, *fake.stride())]
    symbols = sorted({symbol for one in expressions for symbol in one.free_symbols}, key=str)
    least = 0 if how == "empty" else 1
    bounds = {
        symbol: (max(int(ranges[symbol].lower), least), ranges[symbol].upper) for symbol in symbols if symbol in ranges
    }
    numbers = {size for fake in fakes for size in fake.shape if isinstance(size, int)}
    numbers |= {size for value in captured if isinstance(value, torch.Tensor) for size in value.shape}
    alike = min(
        (size for size in numbers if 1 < size <= 64 and all(low <= size <= high for low, high in bounds.values())),
        default=_EQUAL,
    )
    wanted = {
        symbol: {"equal": alike, "one": 1}.get(how, _UNLIKE[at % len(_UNLIKE)]) for at, symbol in enumerate(symbols)
    }
    if how == "empty":
        wanted |= {symbol: 0 for symbol, (low, _) in bounds.items() if low == 0}
    return {
        symbol: int(min(max(size, bounds[symbol][0]), bounds[symbol][1])) if symbol in bounds else size
        for symbol, size in wanted.items()
    }


def _longest(sizes: dict[Any, int], shapes: Sequence[Any], ranges: Mapping[Any, Any]) -> dict[Any, int]:
    """Returns the sizes with one of them as large as its range and `LARGEST` allow, or {} if none can become larger."""
    best = dict(sizes)
    for symbol, size in sizes.items():
        upper = ranges[symbol].upper if symbol in ranges else sympy.oo
        long = int(upper) if upper <= LARGEST else LARGEST
        while long > size:
            tried = {**sizes, symbol: long}
            if all(math.prod(_number(one, tried) for one in shape) <= LARGEST for shape in shapes):
                break
            long //= 2
        if long > max(size, *best.values()):
            best = {**sizes, symbol: long}
    return best if best != sizes else {}


def _expression(size: int | torch.SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(size)


def _number(size: int | torch.SymInt, sizes: Mapping[Any, int]) -> int:
    return max(size, 0) if isinstance(size, int) else _substituted(size.node.expr, tuple(sizes.items()))


@lru_cache(4096)
def _substituted(expression: sympy.Expr, sizes: tuple[tuple[Any, int], ...]) -> int:
    return max(int(expression.subs(dict(sizes))), 0)


def kind(ledger: Ledger, excerpt: Excerpt, captured: Sequence[Any]) -> str:
    """Returns a key for caching tests. Excerpts with equal keys give equal results on equal random values."""
    operands = [
        ("drawn", key_of(node.meta.get("val"))) if node in ledger.varying else ("own", key_of(value))
        for node, value in zip(excerpt.operands, captured, strict=True)
    ]
    return repr((excerpt.step.rule, operands, *(list(_lines(graph)) for graph in (excerpt.before, excerpt.after))))


def _lines(graph: Graph) -> Iterator[Any]:
    names = {node: f"%{at}" for at, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        yield (
            op_name(node.target) if node.op == "call_function" else node.op,
            *map_nodes([list(node.args), *node.kwargs.items()], names.__getitem__),
        )
