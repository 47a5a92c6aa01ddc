"""Two graphs of the same placeholders that draw random numbers in other orders: they cannot be compared value by value.

What dropout gives is, of each element, one of two values: the one where it is kept, scaled by 1 / (1 - p), and the one
where it is dropped. Both are computed from the matched ops, without drawing. Of a replacement every element must be one
of the two; which one must be decided with probability p, by itself; and gradients must be those of the same choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Interpreter, Node

from fuseconv.graph.nodes import arguments, draws, is_getitem, op_name
from fuseconv.numerics.truth import interpret_in_float64
from fuseconv.proof.difference import (
    CANNOT_RUN,
    ROOT,
    SEED,
    clone,
    copied,
    cotangents,
    difference,
    judge,
    overflows,
    run,
    run_in_float64,
    same_draws,
)
from fuseconv.proof.shares import runs, shares

_DROPOUTS = frozenset({"aten.dropout.default", "aten.dropout_.default", "aten.native_dropout.default"})


def judge_redrawn(
    before: Graph,
    after: Graph,
    operands: Sequence[Any],
    *,
    ordinary: bool,
    overflowing: bool = False,
    by_truth: bool = False,
) -> str:
    """Says how what `after` gives is not distributed as what `before` gives; nothing when it is.

    Args:
        before: what is replaced: one dropout that is on, and one result, all of whose elements are that dropout's or
            computed from those at the same place.
        after: what is put in its place.
        operands: as `judge` takes them.
        ordinary: as `judge` takes it. Others are judged in float64 too; gradients are judged of ordinary numbers alone.
        overflowing: as `judge` takes it; of such numbers both may be NaN.
        by_truth: as `judge` takes it; to be one of two values, an element must be close to it.
    """
    del overflowing, by_truth
    dropouts, results = [node for node in before.nodes if _drops(node)], list(_results(before))
    if len(dropouts) != 1 or len(results) != 1:
        found = f"{len(dropouts)} in a match with {len(results)} results"
        return f"`draws` needs one result that is computed from one dropout with 0 < p < 1, but the match has {found}"
    p = float(arguments(dropouts[0])["p"])
    graphs = _with_factor(before, 1 / (1 - p)), _with_factor(before, 0.0)
    try:
        original = _Either(*(run(graph, operands)[0] for graph in graphs))
        truth = _Either(*(run_in_float64(graph, operands)[0] for graph in graphs))
    except CANNOT_RUN:
        return ""
    if not original.kept.is_floating_point():
        return f"`draws` needs a floating-point result, but the result is {original.kept.dtype}"
    try:
        found = _judged(lambda seed: run(after, operands, seed)[0], original, truth, p)
        if found and (not ordinary or overflows([original.kept], [truth.kept])):
            found = _judged(lambda seed: run_in_float64(after, operands, seed)[0], truth, truth, p)
        return found or (_gradients(graphs, after, operands, original, truth) if ordinary else "")
    except CANNOT_RUN as problem:
        return f"the replacement cannot run: {str(problem).strip().splitlines()[0]}"


JUDGES: Mapping[str, Callable[..., str]] = {"same": judge, "any": judge_redrawn}
"""How a replacement is judged, by what its rule says of `draws`."""


def _results(graph: Graph) -> Iterator[Any]:
    yield from graph.output_node().args[0]  # type: ignore[misc]  # a tuple


def _drops(node: Node) -> bool:
    """Whether a node is a dropout that is on; of probability 0 and 1 nothing is drawn."""
    return op_name(node.target) in _DROPOUTS and draws(node) and arguments(node)["p"] < 1


def _with_factor(before: Graph, factor: float) -> Graph:
    """A copy in which the dropout is a product with a number."""
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
    """What each element is where it is kept, and where it is dropped."""

    kept: Tensor
    dropped: Tensor

    def at(self, kept: Tensor) -> Tensor:
        """What the elements are, given which are kept."""
        return torch.where(kept, self.kept, self.dropped)

    def keeps(self, actual: Tensor) -> Tensor:
        """Which elements are nearer to what they are where they are kept. What is infinite is NaN where dropped."""
        nearer = (actual - self.kept).abs() < (actual - self.dropped).abs()
        return torch.where(self.dropped.isnan(), ~actual.isnan(), nearer)

    def told_apart(self, dtype: torch.dtype) -> Tensor:
        """Of which elements the two are numbers that no rounding to a dtype confuses."""
        limits = torch.finfo(dtype)
        size = torch.maximum(self.kept.abs(), self.dropped.abs())
        apart = (self.kept - self.dropped).abs()
        return apart.isfinite() & (apart > 16 * (limits.eps * size + limits.tiny))


def _judged(drawn: Callable[[int], Tensor], original: _Either, truth: _Either, p: float) -> str:
    """Judges what a replacement gives for seeds, at least two of them: values, then shares."""
    told = truth.told_apart(original.kept.dtype)
    first = drawn(SEED)
    if first.shape != original.kept.shape:
        return difference([first], [original.kept], [truth.kept])
    actual = torch.stack([first, *(drawn(SEED + at) for at in range(1, runs(told, p)))])
    kept = original.keeps(actual)
    for at in (0, ...):  # one by itself, whose elements a message can name, then all
        if found := difference([actual[at]], [original.at(kept[at])], [truth.at(kept[at])]):
            return found
    if not torch.equal(original.keeps(drawn(SEED)), kept[0]):
        return "the result differs between runs with the same seed"
    return shares(~kept, told, p)


def _gradients(
    graphs: tuple[Graph, Graph], after: Graph, operands: Sequence[Any], original: _Either, truth: _Either
) -> str:
    """Says how the gradients differ from those through the same mask, at the elements of which it is known."""
    kept, told = original.keeps(run(after, operands)[0]), truth.told_apart(original.kept.dtype)

    def chosen(either: Sequence[Any]) -> Tensor:
        return _Either(*either).at(kept)

    def narrow(graph: Graph, leaves: Sequence[Any]) -> Any:
        return Interpreter(ROOT, graph=graph).run(*leaves)[0]

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
    """The gradients of the floating operands; zero where there is none."""
    leaves = [clone(one) for one in operands]
    sources = [leaf.requires_grad_() for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]
    with torch.enable_grad(), same_draws():
        result = call([copied(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves])
        if not result.requires_grad:
            return [torch.zeros_like(source) for source in sources]
        given = torch.autograd.grad(result, sources, cotangents([result])[0] * told, allow_unused=True)
    pairs = zip(given, sources, strict=True)
    return [torch.zeros_like(source) if one is None else one.detach() for one, source in pairs]
