"""Shortens the chains of views in a graph, and removes the copies in them that no op needs.

All chains that begin at one value are rewritten together, so that a copy disappears when nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from fuseconv.graph.all_sizes import GuardError, key_of
from fuseconv.graph.proved_sizes import row_major, same_size
from fuseconv.matching.graph import Workspace, find_op, map_nodes, op_name
from fuseconv.matching.match import Candidate, Match, check_apart, settle
from fuseconv.matching.ones import called_at_one, values_at_one
from fuseconv.matching.search import Index
from fuseconv.matching.view_chain import (
    Cost,
    Link,
    Op,
    base_of_link,
    cost_of,
    is_copy,
    is_reshape,
    link,
    only_transposes,
    shortest,
)
from fuseconv.rulebook.operands import base_of
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_text import parse_line

_ATTENTION = "aten.scaled_dot_product_attention.default"
_PRODUCTS = ("aten.matmul.default", "aten.bmm.default", "aten.baddbmm.default")
_SIZES = ("aten.sym_size.int", "aten.sym_numel.default")


@dataclass(frozen=True)
class Chain:
    """A chain of views, and whether the lines that replace it cost less than the chain."""

    links: tuple[Link, ...]
    better: bool


def views(index: Index, rule: Rule) -> Iterator[Match]:
    """Yields a match for each value from which some chain of views can be made shorter, or needs fewer copies."""
    workspace = index.workspace
    for base, chains in _together(workspace).items():
        lines = _Lines(workspace, base)
        results = {f"y{at}": chain.links[-1][-1] for at, chain in enumerate(chains)}
        nodes = frozenset(node for chain in chains for one in chain.links for node in one)
        try:
            for name, chain in zip(results, chains, strict=True):
                lines.add(chain.links, name)
            check_apart(index, nodes, lines.captures, results)
            yield settle(index, Candidate(rule, nodes, lines.captures, results), list(map(parse_line, lines.texts)))
        except Refused:
            continue


def _together(workspace: Workspace) -> dict[Node, list[Chain]]:
    """Returns, for each value, the chains from it that become better and share no op with anything else.

    A chain that becomes no worse belongs to them if a better one shares an op with it.
    """
    chains: dict[Node, Chain] = {}
    for node in workspace.graph.nodes:
        if link(node, workspace.ranges) and not all(_goes_on(user, workspace) for user in node.users):
            chains |= _rewritten(workspace, node, _chain(workspace, node))
    while cut := _first_open(chains):
        end, rest = cut
        del chains[end]
        chains |= _rewritten(workspace, end, rest)
    found: dict[Node, list[Chain]] = {}
    for chain in chains.values():
        found.setdefault(base_of_link(chain.links[0]), []).append(chain)
    return {base: together for base, together in found.items() if any(chain.better for chain in together)}


def _first_open(chains: Mapping[Node, Chain]) -> tuple[Node, tuple[Link, ...]] | None:
    """Returns the end of a chain that shares an op with something else, and the rest of the chain after this op."""
    inner = {node for chain in chains.values() for one in chain.links for node in one}
    bases = {base_of_link(chain.links[0]) for chain in chains.values()}
    for end, chain in chains.items():
        for at in reversed(range(len(chain.links) - 1)):
            one = chain.links[at]
            if one[-1] in bases or not all(node in chains or inner.issuperset(node.users) for node in one):
                return end, chain.links[at + 1 :]
    return None


def _goes_on(user: Node, workspace: Workspace) -> bool:
    """Returns whether a user of a value is a view of it, so that a chain goes on there."""
    return bool(link(user, workspace.ranges)) or op_name(user.target) == "aten.unbind.int"


def _chain(workspace: Workspace, end: Node) -> tuple[Link, ...]:
    chain: list[Link] = []
    while one := link(end, workspace.ranges):
        chain.append(one)
        end = base_of_link(one)
    return tuple(chain[::-1])


def _rewritten(workspace: Workspace, end: Node, links: tuple[Link, ...]) -> dict[Node, Chain]:
    """Returns, by its end, the part of a chain up to its end for which other ops make the chain cheapest.

    The shortest part of several. If no part becomes cheaper, the longest part that other ops compute as cheaply.
    """
    whole = best = _cost(workspace, links)
    found: dict[Node, Chain] = {}
    for start in range(len(links)):
        rest = links[start:]
        old = _cost(workspace, rest)
        try:
            new = _Lines(workspace, base_of_link(rest[0])).add(rest, "y")
        except Refused:
            continue
        total = _cost(workspace, links[:start]) + new
        if total < whole and total <= best:
            best, found = total, {end: Chain(rest, better=True)}
        elif new == old:
            found.setdefault(end, Chain(rest, better=False))
    return found


def _cost(workspace: Workspace, links: tuple[Link, ...]) -> Cost:
    return cost_of(links, sum(_copies(workspace, one) for one in links))


def _copies(workspace: Workspace, one: Link) -> bool:
    """Returns whether an op of a chain copies memory."""
    base, value = base_of_link(one), one[-1].meta["val"]
    if is_copy(one):
        return not _is_dense(base, base.meta["val"])
    name = op_name(one[0].target).removeprefix("aten.")
    return is_reshape(one) and _may_copy(name) and _needs_copy(workspace, base.meta["val"], value)


def _may_copy(op: str) -> bool:
    """Returns whether an op that splits or merges axes copies if the strides of its operand allow no view."""
    return not op.startswith(("squeeze", "unsqueeze", "unflatten", "view"))


def _needs_copy(workspace: Workspace, base: torch.Tensor, value: torch.Tensor) -> bool:
    """Returns whether a tensor's strides do not allow a view in the shape of another. Caches the answer."""
    if row_major(base):
        return False
    key = (_needs_copy, key_of(base), key_of(list(value.shape)))
    if key not in workspace.results:
        try:
            workspace.run(torch.ops.aten.view.default, (base, list(value.shape)), {})
            workspace.results[key] = False
        except (RuntimeError, ValueError):
            workspace.results[key] = True
    answer: bool = workspace.results[key]
    return answer


def _is_dense(node: Node, fake: torch.Tensor) -> bool:
    """Returns whether a view of a node is row-major, whichever kernel computes the node."""
    return row_major(fake) and op_name(base_of(node).target) != _ATTENTION


def _accepts(user: Node, value: torch.Tensor) -> bool:
    """Returns whether a user of a value reads it in place although it is not row-major."""
    name, unit = op_name(user.target), [same_size(step, 1) for step in value.stride()[-2:]]
    return name in _SIZES or (name == _ATTENTION and unit[-1:] == [True]) or (name in _PRODUCTS and any(unit))


def _part(node: Node, item: Node | None = None) -> Callable[..., Any]:
    """Returns the function that a link calls: an op, or an unbind that returns one of its results."""
    call: Any = node.target
    position: Any = item and item.args[1]
    return lambda *args, **kwargs: call(*args, **kwargs) if item is None else call(*args, **kwargs)[position]


class _Lines:
    """The lines that compute chains of views of one value, which they call `x`.

    Attributes:
        texts: the lines. No op is called twice on the same values.
        captures: the values of the names that no line binds.
    """

    def __init__(self, workspace: Workspace, base: Node) -> None:
        self.workspace = workspace
        self.base = base
        self.texts: list[str] = []
        self.captures: dict[str, Any] = {"x": base}
        self._names: dict[tuple[str, str, str], str] = {}
        self._fakes: dict[str, Any] = {"x": base.meta["val"]}

    def add(self, chain: tuple[Link, ...], result: str) -> Cost:
        """Adds the lines that compute a chain, and returns what they cost.

        Raises:
            Refused: no lines are known to compute the chain.
        """
        ops = shortest(chain)
        if ops is None or self.workspace.squeezed(self.base) is not None:
            raise Refused("views that split and merge whole axes", chain[-1][-1].name)
        name, copies, count = "x", 0, len(ops)
        for op, *given in ops:
            before, name = self._fakes[name], self._call(name, op, given)
            copies += _needs_copy(self.workspace, before, self._fakes[name]) and op.startswith(("reshape", "flatten"))
        end, fake = chain[-1][-1], self._fakes[name]
        dense = _is_dense(self.base, fake) or bool(copies)
        undone = (any(map(is_copy, chain)) and not dense) or (copies > 0 and self._is_undone_at_one(chain, ops))
        if undone and not all(_accepts(user, fake) for user in end.users):
            name, copies, count = self._call(name, "contiguous.default", []), copies + 1, count + 1
        self.texts.append(f"{result} = {name}")
        permutations = sum(op in ("t.default", "transpose.int", "permute.default") for op, *_ in ops)
        shapes = len(ops) - permutations
        if any(op == "permute.default" for op, *_ in ops) and only_transposes(chain):
            # Several transposes are no worse than one permutation, and rules match them.
            spared = max(cost_of(chain, 0).permutations - permutations, 0)
            permutations, count = permutations + spared, count + spared
        return Cost(copies, shapes, permutations, count)

    def _is_undone_at_one(self, chain: tuple[Link, ...], ops: list[Op]) -> bool:
        """Returns whether, at some sizes of 1, the chain's result is row-major, and that of the ops may not be."""
        values = values_at_one(self.base.meta["val"], self.workspace.ranges)
        if values is None:
            return True
        for given, base in values:
            old = new = base
            try:
                for node, *item in chain:
                    old = called_at_one(_part(node, *item), old, node.args[1:], node.kwargs, given)
            except RuntimeError:  # the model itself does not accept these sizes
                continue
            try:
                for op, *args in ops:
                    function: Any = find_op(f"aten.{op}")
                    new = called_at_one(function, new, args, {}, given)
            except RuntimeError:
                return True
            if old.is_contiguous() and not new.is_contiguous():
                return True
        return False

    def _call(self, name: str, op: str, given: list[Any]) -> str:
        args = []
        for value in given:
            if any(isinstance(item, Node) for item in (value if isinstance(value, list) else ())):
                self.captures[f"s{len(self.captures)}"] = value
            args.append(next((one for one, held in self.captures.items() if held is value), repr(value)))
        key = (name, op, ", ".join(args))
        if key not in self._names:
            made = self._names[key] = f"h{len(self._names)}"
            fakes = map_nodes(given, lambda node: node.meta["val"])
            call: Any = find_op(f"aten.{op}")
            try:
                self._fakes[made] = self.workspace.run(call, (self._fakes[name], *fakes), {})
            except (GuardError, RuntimeError, ValueError) as problem:
                raise Refused(f"sizes that {op} accepts", str(problem)) from None
            self.texts.append(f"{made} = aten.{op}({', '.join([name, *args])})")
        return self._names[key]
