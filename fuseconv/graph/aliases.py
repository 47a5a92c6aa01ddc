"""Finds the values that alias a mutated tensor, and decides whether a match that involves the mutation can be replaced.

Aliases are followed from each in-place write through the ops that return views. An op's schema declares which arguments
its results may alias. The schema of a composite op may omit an alias, so the op runs on fake tensors, and the storages
of its operands and results are compared. For a graph without in-place writes, nothing of this is computed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node

from fuseconv.graph.all_sizes import key_of, run_for_all_sizes
from fuseconv.graph.nodes import arguments, facts_of, is_call, is_getitem, nodes_in, written
from fuseconv.graph.recurrent import any_number_of_steps


class Aliases:
    """The in-place writes of a graph, and the aliases of the tensors that they mutate.

    Attributes:
        writers: maps each node that mutates a tensor to all nodes whose values may share memory with that tensor.
    """

    def __init__(self, graph: Graph, root: torch.nn.Module) -> None:
        self.writers: dict[Node, frozenset[Node]] = {}
        self._root = root
        self._writers_of: dict[Node, list[Node]] = {}
        known: dict[Node, frozenset[Node]] = {}
        for node in graph.nodes:
            for operand in mutated(node, root):
                if operand not in known:
                    shared = _sharing(operand)
                    known.update(dict.fromkeys(shared, shared))
                    writers: list[Node] = []  # shared by all nodes with this memory
                    self._writers_of.update((key, writers) for key in shared)
                self.writers[node] = self.writers.get(node, frozenset()) | known[operand]
                self._writers_of[operand].append(node)

    def is_written(self, node: Node) -> bool:
        """Returns whether any node of the graph mutates memory that the value of this node may share."""
        return bool(self._writers_of.get(node))

    def writers_after(self, node: Node) -> list[Node]:
        """Returns the later nodes that mutate memory which the value of this node may share, in graph order."""
        return [writer for writer in self._writers_of.get(node, ()) if node < writer]

    def is_changed_by(self, changed: Collection[Node]) -> bool:
        """Returns whether creating, erasing or rewiring the given nodes may have made this analysis out of date."""
        return any(
            node in self.writers or node in self._writers_of or next(mutated(node, self._root), None) is not None
            for node in changed
        )

    def refusal(self, matched: frozenset[Node], operands: frozenset[Node], results: frozenset[Node]) -> tuple[str, str]:
        """Returns the reason why an in-place write prevents the replacement of a match, as two parts of a message.

        Args:
            matched: the nodes to be replaced.
            operands: the nodes that the matched nodes use.
            results: the matched nodes whose values are replaced.

        Returns:
            The expected property and the violation that was found. Two empty strings if no in-place write prevents the
            replacement.
        """
        for writer in sorted(matched & self.writers.keys()):
            if found := _seen_later(writer, self.writers[writer], matched, results):
                return "an in-place write that nothing else can see", found
        for node in sorted((matched | operands) & self._writers_of.keys()):
            writers = self._writers_of[node]
            for writer in writers[bisect_right(writers, min(matched)) :]:
                if writer not in matched:
                    return "values that are not mutated", f"{node.name} is mutated by {writer.name}"
        return "", ""


def _seen_later(writer: Node, shared: frozenset[Node], matched: frozenset[Node], results: frozenset[Node]) -> str:
    """Returns the reason why something outside the match can see a mutation, or an empty string if nothing can.

    Args:
        writer: a matched node that mutates memory.
        shared: the nodes whose values may share this memory.
        matched: all matched nodes.
        results: the matched nodes whose values are replaced.
    """
    through = _derived(results)
    for node in sorted(shared - through):
        if node.op in ("placeholder", "get_attr"):
            return f"that it mutates {node.name}, which belongs to the caller or the model"
        for user in node.users:
            if user not in matched and user not in through and user > writer:
                return f"that {user.name} reads {node.name} after {writer.name} mutates it"
    return ""


def _derived(results: frozenset[Node]) -> frozenset[Node]:
    """Returns the results and all direct and indirect views of the results."""
    found = set(results)
    queue = list(results)
    while queue:
        node = queue.pop()
        for user in node.users:
            if user not in found and node in viewed(user):
                found.add(user)
                queue.append(user)
    return frozenset(found)


def _sharing(operand: Node) -> frozenset[Node]:
    """Returns all nodes whose values may share memory with `operand`, including `operand`."""
    found = {operand}
    queue = [operand]
    while queue:
        node = queue.pop()
        near = viewed(node) | {user for user in node.users if node in viewed(user)}
        queue.extend(near - found)
        found |= near
    return frozenset(found)


def has_effect(node: Node, root: torch.nn.Module) -> bool:
    """Returns whether a node must run even without users.

    torch's `is_impure` alone does not decide this: a batch norm in train mode, and a control-flow op, may mutate
    tensors too.
    """
    return node.is_impure() or next(mutated(node, root), None) is not None


def mutated(node: Node, root: torch.nn.Module) -> Iterator[Node]:
    """Yields the operands that a node mutates: all operands of a control-flow op if its subgraph mutates a tensor."""
    if is_call(node):
        yield from written(node)
    elif node.op == "call_function" and not is_getitem(node) and any(_writes(module) for module in _bodies(node, root)):
        yield from node.all_input_nodes


def _bodies(node: Node, root: torch.nn.Module) -> Iterator[GraphModule]:
    """Yields the subgraphs that a control-flow op receives as operands."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr" and isinstance(operand.target, str):
            module = root.get_submodule(operand.target) if _is_submodule(root, operand.target) else None
            if isinstance(module, GraphModule):
                yield module


def _is_submodule(root: torch.nn.Module, name: str) -> bool:
    return any(name == known for known, _ in root.named_modules())


def _writes(module: GraphModule) -> bool:
    return any(any(True for _ in mutated(node, module)) for node in module.graph.nodes)


def viewed(node: Node) -> frozenset[Node]:
    """Returns the operands with which a node's value may share memory: all operands if the target is no OpOverload."""
    if is_getitem(node):
        return frozenset(node.all_input_nodes)
    if node.op != "call_function":
        return frozenset()
    if not is_call(node):
        return frozenset(node.all_input_nodes)
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    shares = facts_of(node).shares
    given = arguments(node) if shares else {}
    found = {operand for name in shares for operand in nodes_in(given[name])}
    if not found and target._can_decompose():
        found.update(_returned(node))
    return frozenset(found)


def _returned(node: Node) -> Iterator[Node]:
    """Runs a composite op on fake tensors, and yields the operands whose storage a result uses.

    Yields all tensor operands if the op cannot run. Layers of the same shape share the result of one run.
    """
    operands = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), torch.Tensor)]
    if not operands:
        return
    values = {operand: operand.meta["val"] for operand in node.all_input_nodes}
    mode = getattr(values[operands[0]], "fake_mode", None)
    if mode is None:
        yield from operands
        return
    storages = [values[operand].untyped_storage()._cdata for operand in operands]
    places = {operand: f"operand {place}" for place, operand in enumerate(node.all_input_nodes)}
    called = torch.fx.map_arg((node.args, dict(node.kwargs)), places.__getitem__)
    shared = tuple(map(storages.index, storages))
    key = (node.target, key_of((called[0], list(called[1].items()), list(values.values()))), shared)
    known = _RETURNED.setdefault(mode, {})
    if key not in known:
        known[key] = _places_returned(node, values, storages, mode)
    yield from (operands[place] for place in known[key])


_RETURNED: WeakKeyDictionary[FakeTensorMode, dict[Any, Sequence[int]]] = WeakKeyDictionary()
"""The results of `_places_returned`, by the call and the shapes, strides and shared storages of its operands."""


def _places_returned(
    node: Node, values: Mapping[Node, Any], storages: Sequence[int], mode: FakeTensorMode
) -> Sequence[int]:
    """Returns the indices of the storages that a result of a composite op uses: all if the op cannot run."""
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)

    def places() -> Sequence[int]:
        result = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
        tensors = filter(_is, torch.utils._pytree.tree_leaves(result))
        used = {tensor.untyped_storage()._cdata for tensor in tensors}
        return [place for place, storage in enumerate(storages) if storage in used]

    try:
        with any_number_of_steps():
            found: Sequence[int] = run_for_all_sizes(mode, places)
    except RuntimeError:  # some composite ops do not accept symbolic sizes
        return range(len(storages))
    return found


def _is(value: object) -> bool:
    return isinstance(value, torch.Tensor)
