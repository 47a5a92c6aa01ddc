"""Compares two graphs that use different random numbers, so that their results cannot be compared element by element.

A dropout keeps each element, scaled by 1 / (1 - p), or drops it. Both possible results are computed from the matched
ops without random numbers. Every element that the replacement computes must equal one of its two possible values. The
elements must be dropped independently with probability p, and the gradients must be those of the same dropout mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from fuseconv.graph.nodes import arguments, draws, is_getitem, op_name
from fuseconv.graph.runner import Runner
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.proof.difference import (
    CANNOT_RUN,
    ROOT,
    SEED,
    Compared,
    clone,
    compare_graphs,
    copied,
    cotangents,
    difference,
    overflows,
    run,
    run_in_float64,
    same_draws,
)
from fuseconv.proof.shares import runs, shares

_DROPOUTS = frozenset({"aten.dropout.default", "aten.dropout_.default", "aten.native_dropout.default"})


def compare_redrawn(
    before: Graph,
    after: Graph,
    operands: Sequence[Any],
    *,
    ordinary: bool,
    overflowing: bool = False,
    fp64_only: bool = False,
) -> Compared:
    """Runs two graphs and compares the distributions of their results. Errors are not measured.

    Args:
        before: the graph of the matched ops. It contains one active dropout and has one result. Each element of the
            result is computed from the dropout's element at the same position.
        after: the graph of the replacement.
        operands: the values of the placeholders of both graphs, in order. They are not mutated.
        ordinary: whether the operands are ordinary numbers. Gradients are compared only for ordinary numbers. For other
            operands, a difference is compared again in float64.
        overflowing: ignored. It exists so that both functions in `COMPARISONS` take the same arguments.
        fp64_only: ignored, for the same reason.
    """
    del overflowing, fp64_only
    found = _differs(before, after, operands, ordinary=ordinary)
    return Compared(found or "", ran=found is not None)


def _differs(before: Graph, after: Graph, operands: Sequence[Any], *, ordinary: bool) -> str | None:
    """Returns how the distributions of the results differ, or an empty string if they agree.

    Returns None if the matched ops cannot run on the operands.
    """
    dropouts, results = [node for node in before.nodes if _drops(node)], list(_results(before))
    if len(dropouts) != 1 or len(results) != 1:
        found = f"{len(dropouts)} in a match with {len(results)} results"
        return f"`draws` needs one result that is computed from one dropout with 0 < p < 1, but the match has {found}"
    p = float(arguments(dropouts[0])["p"])
    graphs = _with_factor(before, 1 / (1 - p)), _with_factor(before, 0.0)
    try:
        original = _Either(*(run(graph, operands)[0] for graph in graphs))
        fp64 = _Either(*(run_in_float64(graph, operands)[0] for graph in graphs))
    except CANNOT_RUN:
        return None
    if not original.kept.is_floating_point():
        return f"`draws` needs a floating-point result, but the result is {original.kept.dtype}"
    try:
        found = _compare_values(lambda seed: run(after, operands, seed)[0], original, fp64, p)
        if found and (not ordinary or overflows([original.kept], [fp64.kept])):
            found = _compare_values(lambda seed: run_in_float64(after, operands, seed)[0], fp64, fp64, p)
        return found or (_gradients(graphs, after, operands, original, fp64) if ordinary else "")
    except CANNOT_RUN as problem:
        return f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"


COMPARISONS: Mapping[str, Callable[..., Compared]] = {"same": compare_graphs, "any": compare_redrawn}
"""Maps each value of a rule's `draws` field to the function that compares the replacement with the matched ops."""


def _results(graph: Graph) -> Iterator[Any]:
    yield from graph.output_node().args[0]  # type: ignore[misc]  # a tuple


def _drops(node: Node) -> bool:
    """Returns whether a node is a dropout that generates random numbers, with 0 < p < 1."""
    return op_name(node.target) in _DROPOUTS and draws(node) and arguments(node)["p"] < 1


def _with_factor(before: Graph, factor: float) -> Graph:
    """Returns a copy of the graph in which a multiplication by `factor` replaces the only dropout."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    graph.output(graph.graph_copy(before, copies))
    (dropout,) = [node for node in graph.nodes if _drops(node)]
    given = [dropout] if op_name(dropout.target) != "aten.native_dropout.default" else [*dropout.users]
    for node in given:
        if not is_getitem(node) or node.args[1] == 0:  # the other result of native_dropout is its mask
            with graph.inserting_before(node):
                scaled = graph.call_function(torch.ops.aten.mul.Tensor, (dropout.args[0], factor))
            node.replace_all_uses_with(scaled)
            graph.erase_node(node)
    return graph


@dataclass(frozen=True)
class _Either:
    """The two possible values of every element: the result if the dropout keeps all elements, and if it drops all."""

    kept: Tensor
    dropped: Tensor

    def at(self, kept: Tensor) -> Tensor:
        """Returns the result for the bool mask `kept`, which is true for kept elements."""
        return torch.where(kept, self.kept, self.dropped)

    def keeps(self, actual: Tensor) -> Tensor:
        """Returns a bool mask of the elements that are closer to their kept value than to their dropped value.

        Where the dropped value is NaN, which is 0 times an infinity, an element is kept if it is not NaN.
        """
        nearer = (actual - self.kept).abs() < (actual - self.dropped).abs()
        return torch.where(self.dropped.isnan(), ~actual.isnan(), nearer)

    def told_apart(self, dtype: torch.dtype) -> Tensor:
        """Returns a bool mask of the elements whose two possible values differ by more than a rounding error."""
        limits = torch.finfo(dtype)
        size = torch.maximum(self.kept.abs(), self.dropped.abs())
        apart = (self.kept - self.dropped).abs()
        return apart.isfinite() & (apart > 16 * (limits.eps * size + limits.tiny))


def _compare_values(drawn: Callable[[int], Tensor], original: _Either, fp64: _Either, p: float) -> str:
    """Compares the results for at least two seeds.

    Returns a description of the first difference in the values, the dropout masks or the dropout rate, or an empty
    string if there is none.
    """
    told = fp64.told_apart(original.kept.dtype)
    first = drawn(SEED)
    if first.shape != original.kept.shape:
        return difference([first], [original.kept], [fp64.kept])
    actual = torch.stack([first, *(drawn(SEED + at) for at in range(1, runs(told, p)))])
    kept = original.keeps(actual)
    for at in (0, ...):  # the first mask alone, so that a message can name elements, then all masks together
        if found := difference([actual[at]], [original.at(kept[at])], [fp64.at(kept[at])]):
            return found
    if not torch.equal(original.keeps(drawn(SEED)), kept[0]):
        return "the result differs between runs with the same seed"
    return shares(~kept, told, p)


def _gradients(
    graphs: tuple[Graph, Graph], after: Graph, operands: Sequence[Any], original: _Either, fp64: _Either
) -> str:
    """Compares the gradients of the replacement with the original's gradients for the same dropout mask.

    Returns a description of the first difference, or an empty string if there is none. Only elements whose two possible
    values differ by more than a rounding error contribute to the gradients.
    """
    kept, told = original.keeps(run(after, operands)[0]), fp64.told_apart(original.kept.dtype)

    def chosen(either: Sequence[Any]) -> Tensor:
        return _Either(*either).at(kept)

    def narrow(graph: Graph, leaves: Sequence[Any]) -> Any:
        return Runner(ROOT, graph=graph).run(*leaves)[0]

    def wide(graph: Graph, leaves: Sequence[Any]) -> Any:
        return interpret_in_float64(ROOT, leaves, graph)[0]

    widened = [one.double() if isinstance(one, Tensor) and one.is_floating_point() else one for one in operands]
    actual = _gradient(lambda leaves: narrow(after, leaves), operands, told)
    expected = _gradient(lambda leaves: chosen([narrow(graph, leaves) for graph in graphs]), operands, told)
    with torch.autocast(kept.device.type, enabled=False):
        true = _gradient(lambda leaves: chosen([wide(graph, leaves) for graph in graphs]), widened, told)
    found = difference(actual, expected, true)
    return f"of the gradients, {found}" if found else ""


def _gradient(call: Callable[[Sequence[Any]], Tensor], operands: Sequence[Any], told: Tensor) -> list[Tensor]:
    """Returns the gradients with respect to the floating-point operands, with zeros for missing gradients."""
    leaves = [clone(one) for one in operands]
    sources = [leaf.requires_grad_() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    with torch.enable_grad(), same_draws():
        result = call([copied(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        if not result.requires_grad:
            return [torch.zeros_like(source) for source in sources]
        given = torch.autograd.grad(result, sources, cotangents([result])[0] * told, allow_unused=True)
    pairs = zip(given, sources, strict=True)
    return [torch.zeros_like(source) if one is None else one.detach() for one, source in pairs]
