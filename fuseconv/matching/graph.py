"""The graph on which planning and rewriting work: a copy of a program's graph, with the program's constants.

The copy shares weights and fake values with the program, but it has its own nodes and edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

import fuseconv.ops  # noqa: F401  # registers the ops that rules put in place
from fuseconv.graph.aliases import Aliases, has_effect
from fuseconv.graph.all_sizes import key_of, run_for_all_sizes
from fuseconv.graph.elements import elements, leaves_some
from fuseconv.graph.formula import UnknownError
from fuseconv.graph.hazards import check_call
from fuseconv.graph.nodes import (
    arguments,
    find_op,
    is_call,
    is_getitem,
    is_repeatable,
    is_returned,
    map_nodes,
    may_squeeze,
    nodes_in,
    op_name,
    source_line,
    squeezed,
    why_no_op,
)
from fuseconv.rulebook.refused import Refused

__all__ = [
    "Workspace",
    "arguments",
    "find_op",
    "is_call",
    "is_getitem",
    "is_repeatable",
    "is_returned",
    "map_nodes",
    "nodes_in",
    "op_name",
    "source_line",
    "why_no_op",
]

_STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass(frozen=True)
class Deferred:
    """An op call on constants, whose result the conversion computes and stores as a new constant."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Exported(Protocol):
    """The attributes of torch.export.ExportedProgram that a workspace uses, under the same names."""

    @property
    def graph(self) -> Graph:
        """The graph. Each node has a fake value in `meta["val"]`."""

    @property
    def graph_module(self) -> torch.nn.Module:
        """The module that holds the subgraphs of control-flow ops."""

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """The role of each placeholder (parameter, buffer, constant or input) and of each output."""

    @property
    def state_dict(self) -> Mapping[str, Any]:
        """The parameters and buffers."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """The constant tensors."""

    @property
    def range_constraints(self) -> Mapping[Any, Any]:
        """Maps each symbolic size to its declared range."""


class Workspace:
    """A copy of a program's graph for rewriting.

    Attributes:
        graph: the copy. Its nodes have the same names as in the program.
        root: the graph module of the program, which holds the subgraphs of control-flow ops.
        ranges: maps each symbolic size to its declared range.
        mode: the fake mode of the program's values. None for a program without tensors.
        trainable: whether parameters and buffers may change and gradients must be preserved.
        aliases: the alias analysis, which records the memory that the graph mutates.
        results: a cache of what ops on fake tensors return; see `run`. Callers add what they conclude from it.
    """

    def __init__(self, exported: Exported, *, trainable: bool = False, results: dict[Any, Any] | None = None) -> None:
        self.graph = Graph()
        self.root = exported.graph_module
        copies: dict[Node, Node] = {}
        output = self.graph.graph_copy(exported.graph, copies)
        end = self.graph.output(output)
        end.meta = dict(exported.graph.output_node().meta)
        for node, copy in copies.items():
            copy.name = node.name  # a copy is renamed if its name is a Python builtin, such as `input`
        self.ranges: Mapping[Any, Any] = exported.range_constraints
        fakes = (node.meta.get("val") for node in self.graph.nodes)
        self.mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        self.trainable = trainable
        self.graph.eliminate_dead_code(lambda node: has_effect(node, self.root))
        self.aliases = Aliases(self.graph, self.root)
        written = {node.name for node in self.graph.nodes if self.aliases.is_written(node)}
        self._states = {name: state for name, state in _states(exported).items() if name not in written}
        fixed = (InputKind.CONSTANT_TENSOR,) if trainable else _STATE_KINDS
        self._constants: dict[str, torch.Tensor | Deferred] = {
            name: tensor for name, (kind, tensor) in self._states.items() if kind in fixed
        }
        self._computed: dict[str, Node] = {}
        self.results: dict[Any, Any] = {} if results is None else results
        self._formulas: dict[Any, Any] = {}  # until the graph changes; layers share one mask
        self._squeezes = any(may_squeeze(node, self.ranges) for node in self.graph.nodes)
        self._squeezed: dict[Node, Node] | None = None  # until the graph changes
        self._changed: dict[Node, None] = {}
        self._loose: dict[Node, None] = {}  # nodes that may have lost their last user since `clean`
        self._first = self._first_of_inputs()
        self._nodes: dict[str, Node] = {node.name: node for node in self.graph.nodes}
        self._replaced: dict[Node, Node] = {}
        self._origins: dict[Node, str] = {}
        self._read_as: dict[Node, dict[Node, str]] = {}

    def formula(self, node: Any) -> Any:
        """Returns a formula for the elements of a tensor in terms of their indices and the symbolic sizes.

        Raises:
            Refused: the elements depend on an input, or on an op for which no formula is known.
        """
        if node not in self._formulas:
            try:
                self._formulas[node] = elements(node, self.ranges, self.constant, self.aliases.is_written)
            except UnknownError as problem:
                self._formulas[node] = Refused("elements that are a formula of indices and sizes", str(problem))
        if isinstance(found := self._formulas[node], Refused):
            raise found.with_traceback(None)
        return found

    def leaves_some(self, node: Any) -> bool:
        """Returns whether each row of a bool tensor provably has a False element, for all sizes.

        Raises:
            Refused: the elements depend on an input, or on an op for which no formula is known.
        """
        try:
            return leaves_some(node, self.ranges, self.constant, self.aliases.is_written)
        except UnknownError as problem:
            raise Refused("elements that are a formula of indices and sizes", str(problem)) from None

    def squeezed(self, node: Any) -> Node | None:
        """Returns the node that determines the rank of a value if a squeeze may change it. None if it never changes."""
        if self._squeezed is None:
            self._squeezed = squeezed(self.graph, self.ranges) if self._squeezes else {}
        return self._squeezed.get(node) if isinstance(node, Node) else None

    def is_state(self, node: Any) -> bool:
        """Returns whether a node is a parameter, buffer or constant, or is computed from constants at conversion."""
        return self.is_constant(node) or (
            isinstance(node, Node) and node.op == "placeholder" and node.name in self._states
        )

    def is_constant(self, node: Any) -> bool:
        """Returns whether the value of a node never changes, so that it can be used at conversion.

        This holds for the parameters, buffers and constant tensors of the model, and for constants computed from these.
        In a trainable program it does not hold for parameters and buffers, whose values may change.
        """
        return isinstance(node, Node) and node.op == "placeholder" and node.name in self._constants

    def constant(self, node: Any) -> torch.Tensor | None:
        """Returns the tensor of a constant node, or None for any other node. Computes the tensor if necessary."""
        if not self.is_constant(node):
            return None
        known = self._constants[node.name]
        if isinstance(known, Deferred):
            known = self._constants[node.name] = self._compute(known, {}).detach().clone()
        return known

    def deferred(self, node: Node) -> Deferred | None:
        """Returns the op call that computes a constant, or None if the node is no constant or is already computed."""
        known = self._constants.get(node.name) if node.op == "placeholder" else None
        return known if isinstance(known, Deferred) else None

    def _compute(self, deferred: Deferred, done: dict[Node, torch.Tensor]) -> torch.Tensor:
        def value(node: Node) -> torch.Tensor:
            known = self._constants[node.name]
            if isinstance(known, Deferred):
                known = done[node] = done[node] if node in done else self._compute(known, done)
            return known

        args, *rest = map_nodes([list(deferred.args), *deferred.kwargs.values()], value)
        with torch.no_grad():
            result: torch.Tensor = deferred.op(*args, **dict(zip(deferred.kwargs, rest, strict=True)))
        return result

    def compute(self, op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, fake: torch.Tensor) -> Node:
        """Returns a constant node for the result of an op on constants. The value is computed when it is first needed.

        Calls of the same op on the same constants return the same node, so that two matches keep sharing a weight.
        Each node gets its own copy of the fake value `fake`, because torch treats placeholders with the same value as
        one parameter.
        """
        key = repr((op, args, sorted(kwargs.items())))
        if key not in self._computed:
            if self._first.op != "placeholder":
                self._first = self._first_of_inputs()  # without inputs it is an op, which may be erased
            with self.graph.inserting_before(self._first):
                node = self.graph.create_node("placeholder", name, name=name)
            node.target = node.name
            node.meta["val"] = run_for_all_sizes(self.mode, lambda: torch.empty_like(fake))
            self._constants[node.name] = Deferred(op, args, kwargs)
            self._computed[key] = node
        return self._computed[key]

    def _first_of_inputs(self) -> Node:
        node: Node = next(node for node in self.graph.nodes if not self.is_state(node))
        return node

    def run(self, op: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Runs an op on fake tensors with symbolic sizes, and returns the result. Results are cached.

        The cache key contains the op, its other arguments, and the dtypes, shapes and strides of its tensors.

        Layers of the same shape share the cached result as `meta["val"]`, because creating a fake tensor with symbolic
        sizes takes a millisecond. A placeholder must have its own fake value.

        Raises:
            GuardError: the op requires a guard that the program does not contain.
            ValueError: the op would terminate the process.
        """
        check_call(op, args)
        key = (op, key_of(args), key_of(list(kwargs.items())))
        if key not in self.results:
            result = run_for_all_sizes(self.mode, lambda: op(*args, **kwargs))
            if free_unbacked_symbols(result):
                return result  # data-dependent sizes are valid for this call only
            self.results[key] = result
        return self.results[key]

    def computed(self) -> dict[str, torch.Tensor]:
        """Returns the computed constants that still have users, as a mapping from node names to tensors."""
        used = [node for node in self._computed.values() if node.users]
        tensors = ((node.name, self.constant(node)) for node in used)
        return {name: tensor for name, tensor in tensors if tensor is not None}

    def may_require_grad(self, node: Node) -> bool:
        """Returns whether the value of a node may require grad, because it depends on a placeholder that may change."""
        seen, queue = {node}, [node]
        while queue:
            node = queue.pop()
            if node.op == "placeholder" and not self.is_constant(node):
                return True
            queue.extend(operand for operand in node.all_input_nodes if operand not in seen)
            seen.update(node.all_input_nodes)
        return False

    def node(self, name: str) -> Node:
        """Returns the node that has this name in the program, or the node that has since replaced it.

        Raises:
            Refused: no such node exists, or an earlier step removed the node, or no earlier step created it.
        """
        node: Node | None = self._nodes.get(name)
        if node is None:
            origin, rule, made = (*name.split("/"), "", "")[:3]
            wanted = f"{made}, created by rule {rule} at {origin}" if made else f"a node {name}"
            raise Refused(wanted, "no earlier step creates it" if made else "no node of that name")
        node = self.current(node)
        if node._erased:
            raise Refused(f"a node {name}", "that an earlier step removed it")
        return node

    def find(self, name: str) -> Node | None:
        """Returns the same node as `node`, or None if no node has this name or a step has removed the node."""
        node = self._nodes.get(name)
        current = None if node is None else self.current(node)
        return None if current is None or current._erased else current

    def current(self, node: Node) -> Node:
        """Returns the node that now computes the value of a node: its latest replacement, or the node itself."""
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def name(self, node: Node) -> str:
        """Returns the name by which later steps refer to a node, and which `self.node` resolves to the node.

        A node that replaces another node takes over the name of that node. A node that was created for an intermediate
        value is named `NODE/RULE/NAME`: the replaced node, the rule, and the name in the rule.
        """
        return self._origins.get(node, node.name)

    def name_used_by(self, user: Node, operand: Node) -> str:
        """Returns the name by which a step refers to an operand of `user`: its name before any step replaced it.

        The name resolves to the operand whether or not the replacing steps are executed. So the plan stays valid if
        these steps are removed.
        """
        return self._read_as.get(user, {}).get(operand) or self.name(operand)

    def create(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, read_as: Mapping[Node, str]
    ) -> Node:
        """Creates a call of an op at the graph's insertion point and returns its node.

        `read_as` maps operands of the call to the names that `name_used_by` returns for them.
        """
        node = self.graph.create_node("call_function", op, args, kwargs, name)
        self._touch(node, *node.all_input_nodes)
        self._read_as[node] = {operand: read_as[operand] for operand in node.all_input_nodes if operand in read_as}
        return node

    def refer(self, node: Node, reference: str) -> str:
        """Registers a name for a node that a step created. Returns the name, with a suffix if the name was taken."""
        taken = sum(known.partition("~")[0] == reference for known in self._nodes) if reference in self._nodes else 0
        reference = f"{reference}~{taken + 1}" if taken else reference
        self._nodes[reference] = node
        self._origins.setdefault(node, reference)
        return reference

    def replace(self, node: Node, new: Node, *, made: bool) -> None:
        """Replaces all uses of a node with `new`. `made` is true if `new` was created to replace the node."""
        self._touch(node, new, *node.users)
        for user in node.users:
            self._read_as.setdefault(user, {}).setdefault(new, self.name_used_by(user, node))
        node.replace_all_uses_with(new)
        self._replaced[node] = new
        if made:
            self._origins[new] = self.name(node)

    def erase(self, node: Node) -> None:
        """Erases a node that has no users."""
        self._touch(node, *node.all_input_nodes)
        self.graph.erase_node(node)

    def relay(self, node: Node, op: Any, fake: Any) -> None:
        """Replaces the op and the fake value of a node whose strides have changed."""
        self._changed[node] = None
        node.target, node.meta["val"] = op, fake

    def clean(self) -> None:
        """Removes dead nodes from the graph."""
        queue, self._loose = list(self._loose), {}
        while queue:
            node = queue.pop()
            if not node._erased and not node.users and not has_effect(node, self.root):
                queue.extend(node.all_input_nodes)
                self.erase(node)

    def _touch(self, *nodes: Node) -> None:
        """Marks nodes as created, erased or changed, so that the next `take_changed` returns these nodes."""
        noted = dict.fromkeys(nodes)
        self._changed.update(noted)
        self._loose.update(noted)

    def take_changed(self) -> list[Node]:
        """Removes dead nodes and returns every node that was created, erased or changed since the last call.

        A node counts as changed if its operands, users or value changed.
        """
        self.clean()
        changed, self._changed = list(self._changed), {}
        if changed:
            self._formulas.clear()
            self._squeezed = None
        if self.aliases.is_changed_by(changed):
            self.aliases = Aliases(self.graph, self.root)
        return changed


def _states(exported: Exported) -> dict[str, tuple[InputKind, torch.Tensor]]:
    signature = exported.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    tables: tuple[Mapping[str, Any], ...] = (exported.state_dict, exported.constants)
    states = {}
    for spec in signature.input_specs:
        if spec.kind in _STATE_KINDS and spec.target is not None and spec.target not in mutated:
            tensor = next((table[spec.target] for table in tables if spec.target in table), None)
            if isinstance(tensor, torch.Tensor):
                states[spec.arg.name] = (spec.kind, tensor)
    return states
