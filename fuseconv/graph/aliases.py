"""Which values share memory that a program writes in place, and whether a write can be made a new value instead.

Almost every captured program writes nothing, and then nothing here is computed. Memory is followed outwards from each
write: backwards and forwards over the ops that return a view, by their schema, or by running them on their fake values
and comparing storages (a composite op may return its input without saying so).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from fuseconv.graph.all_sizes import GuardError, all_sizes
from fuseconv.graph.nodes import arguments, facts_of, is_call, is_getitem, nodes_in, written


class Aliases:
    """The memory that a graph writes.

    Attributes:
        writers: every node that writes memory, to the nodes that share it.
    """

    def __init__(self, graph: Graph, root: torch.nn.Module) -> None:
        self.writers: dict[Node, frozenset[Node]] = {}
        self._root = root
        self._writers_of: dict[Node, list[Node]] = {}
        known: dict[Node, frozenset[Node]] = {}
        for node in graph.nodes:
            for operand in _written(node, root):
                if operand not in known:
                    shared = _sharing(operand)
                    known.update(dict.fromkeys(shared, shared))
                    writers: list[Node] = []  # one for all that share the memory
                    self._writers_of.update((key, writers) for key in shared)
                self.writers[node] = self.writers.get(node, frozenset()) | known[operand]
                self._writers_of[operand].append(node)

    def is_written(self, node: Node) -> bool:
        """Whether a node's memory is written, sooner or later: what it was made as is not what its readers see."""
        return bool(self._writers_of.get(node))

    def writers_after(self, node: Node) -> list[Node]:
        """The nodes that write a node's memory once it is computed, in the order of the graph."""
        return [writer for writer in self._writers_of.get(node, ()) if node < writer]

    def is_changed_by(self, changed: Collection[Node]) -> bool:
        """Whether this may no longer be so when nodes are new, erased, or have other operands or readers."""
        return any(
            node in self.writers or node in self._writers_of or next(_written(node, self._root), None) is not None
            for node in changed
        )

    def refusal(self, matched: frozenset[Node], operands: frozenset[Node], results: frozenset[Node]) -> tuple[str, str]:
        """Tells why a write forbids that `matched` nodes are computed anew, at once, from `operands`.

        Args:
            matched: the nodes to be replaced.
            operands: the nodes they read.
            results: those of `matched` whose value is replaced.

        Returns:
            (what is expected, what is found); two empty texts when no write forbids it.
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
    """Tells who else could see what `writer`, a node of the match, writes; an empty text when nobody can."""
    through = _derived(results)
    for node in sorted(shared - through):
        if node.op in ("placeholder", "get_attr"):
            return f"that it mutates {node.name}, which belongs to the caller or the model"
        for user in node.users:
            if user not in matched and user not in through and user > writer:
                return f"that {user.name} reads {node.name} after {writer.name} mutates it"
    return ""


def _derived(results: frozenset[Node]) -> frozenset[Node]:
    """The results and every view taken of them: they see a new value as well as a written one."""
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
    found = {operand}
    queue = [operand]
    while queue:
        node = queue.pop()
        near = viewed(node) | {user for user in node.users if node in viewed(user)}
        queue.extend(near - found)
        found |= near
    return frozenset(found)


def _written(node: Node, root: torch.nn.Module) -> Iterator[Node]:
    if is_call(node):
        yield from written(node)
    elif node.op == "call_function" and not is_getitem(node) and any(_writes(module) for module in _bodies(node, root)):
        yield from node.all_input_nodes


def _bodies(node: Node, root: torch.nn.Module) -> Iterator[GraphModule]:
    """The subgraphs that a control-flow op runs."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr" and isinstance(operand.target, str):
            module = root.get_submodule(operand.target) if _is_submodule(root, operand.target) else None
            if isinstance(module, GraphModule):
                yield module


def _is_submodule(root: torch.nn.Module, name: str) -> bool:
    return any(name == known for known, _ in root.named_modules())


def _writes(module: GraphModule) -> bool:
    return any(any(True for _ in _written(node, module)) for node in module.graph.nodes)


def viewed(node: Node) -> frozenset[Node]:
    """Returns the operands whose memory a node's value may share."""
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
    """The operands whose storage a composite op hands on, found by running it on fake values."""
    operands = [operand for operand in node.all_input_nodes if isinstance(operand.meta.get("val"), torch.Tensor)]
    if not operands:
        return
    values = {operand: operand.meta["val"] for operand in node.all_input_nodes}
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda operand: values[operand])
    mode = getattr(values[operands[0]], "fake_mode", None)
    if mode is None:
        yield from operands
        return
    try:
        with all_sizes(mode):
            result = node.target(*args, **kwargs)  # type: ignore[operator]  # an OpOverload
    except (GuardError, RuntimeError):  # some composite ops take no symbolic sizes
        yield from operands
        return
    storages = {tensor.untyped_storage()._cdata for tensor in torch.utils._pytree.tree_leaves(result) if _is(tensor)}
    yield from (operand for operand in operands if values[operand].untyped_storage()._cdata in storages)


def _is(value: object) -> bool:
    return isinstance(value, torch.Tensor)
