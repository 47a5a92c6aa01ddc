"""The working graph of planning and rewriting: a copy of a program's graph, its constants, and how it is read.

The copy shares weights and fake values with the program; only nodes and edges are its own.
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
from fuseconv.graph.aliases import Aliases
from fuseconv.graph.all_sizes import key_of, run_for_all_sizes
from fuseconv.graph.elements import elements, leaves_some
from fuseconv.graph.formula import UnknownError
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
    """A constant to be computed: an op, and arguments of which every node is a constant."""

    op: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Exported(Protocol):
    """What is read of a torch.export.ExportedProgram, by the names it has there."""

    @property
    def graph(self) -> Graph:
        """Its graph, with a fake value in each node's `meta["val"]`."""

    @property
    def graph_module(self) -> torch.nn.Module:
        """Holds the submodules of control flow."""

    @property
    def graph_signature(self) -> ExportGraphSignature:
        """What each placeholder and each output stands for."""

    @property
    def state_dict(self) -> Mapping[str, Any]:
        """The parameters and buffers."""

    @property
    def constants(self) -> Mapping[str, Any]:
        """The constant tensors."""

    @property
    def range_constraints(self) -> Mapping[Any, Any]:
        """Symbolic size to the range declared for it."""


class Workspace:
    """A program's graph, copied to be rewritten.

    Attributes:
        graph: the copy; node names are those of the program.
        root: the program's graph module: holds the submodules of control flow.
        ranges: symbolic size to the range declared for it.
        mode: the fake mode of the program's values; None for a program that holds no tensor.
        trainable: whether parameters and buffers may change and gradients must flow as they did.
        aliases: the memory that the graph writes in place.
    """

    def __init__(self, exported: Exported, *, trainable: bool = False) -> None:
        self.graph = Graph()
        self.root = exported.graph_module
        copies: dict[Node, Node] = {}
        output = self.graph.graph_copy(exported.graph, copies)
        end = self.graph.output(output)
        end.meta = dict(exported.graph.output_node().meta)
        for node, copy in copies.items():
            copy.name = node.name  # a copy is renamed where a name hides a Python builtin, as `input`
        self.ranges: Mapping[Any, Any] = exported.range_constraints
        fakes = (node.meta.get("val") for node in self.graph.nodes)
        self.mode = next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)
        self.trainable = trainable
        self.graph.eliminate_dead_code()
        self.aliases = Aliases(self.graph, self.root)
        written = {node.name for node in self.graph.nodes if self.aliases.is_written(node)}
        self._states = {name: state for name, state in _states(exported).items() if name not in written}
        fixed = (InputKind.CONSTANT_TENSOR,) if trainable else _STATE_KINDS
        self._constants: dict[str, torch.Tensor | Deferred] = {
            name: tensor for name, (kind, tensor) in self._states.items() if kind in fixed
        }
        self._computed: dict[str, Node] = {}
        self.results: dict[Any, Any] = {}
        self._formulas: dict[Any, Any] = {}  # until the graph changes: layers have one mask in common
        self._squeezes = any(may_squeeze(node, self.ranges) for node in self.graph.nodes)
        self._squeezed: dict[Node, Node] | None = None  # until the graph changes
        self._changed: dict[Node, None] = {}
        self._loose: dict[Node, None] = {}  # those of them that may have lost their last reader since `clean`
        self._first = self._first_of_inputs()
        self._nodes: dict[str, Node] = {node.name: node for node in self.graph.nodes}
        self._replaced: dict[Node, Node] = {}
        self._origins: dict[Node, str] = {}
        self._read_as: dict[Node, dict[Node, str]] = {}

    def formula(self, node: Any) -> Any:
        """Returns the formula of a tensor's elements, for every size.

        Raises:
            Refused: they depend on an input, or on an op that is not followed.
        """
        if node not in self._formulas:
            try:
                self._formulas[node] = elements(node, self.ranges, self.constant, self.aliases.is_written)
            except UnknownError as problem:
                self._formulas[node] = Refused("elements that depend on no input", str(problem))
        if isinstance(found := self._formulas[node], Refused):
            raise found.with_traceback(None)
        return found

    def leaves_some(self, node: Any) -> bool:
        """Whether no row of a bool tensor is all true, for every size.

        Raises:
            Refused: its elements depend on an input, or on an op that is not followed.
        """
        try:
            return leaves_some(node, self.ranges, self.constant, self.aliases.is_written)
        except UnknownError as problem:
            raise Refused("elements that depend on no input", str(problem)) from None

    def squeezed(self, node: Any) -> Node | None:
        """Returns the node on which a value's shape depends when a size is 1; None where the shape never changes."""
        if self._squeezed is None:
            self._squeezed = squeezed(self.graph, self.ranges) if self._squeezes else {}
        return self._squeezed.get(node) if isinstance(node, Node) else None

    def is_state(self, node: Any) -> bool:
        """Whether a node is a parameter, buffer or constant of the model, or computed of constants at conversion."""
        return self.is_constant(node) or (
            isinstance(node, Node) and node.op == "placeholder" and node.name in self._states
        )

    def is_constant(self, node: Any) -> bool:
        """Whether a node's values never change, so that they may be read and computed with at conversion.

        Those are the parameters, buffers and literals of the model; of a trainable program its literals alone; and
        what was computed of them.
        """
        return isinstance(node, Node) and node.op == "placeholder" and node.name in self._constants

    def constant(self, node: Any) -> torch.Tensor | None:
        """Returns the tensor behind a node whose values never change; None for any other."""
        if not self.is_constant(node):
            return None
        known = self._constants[node.name]
        if isinstance(known, Deferred):
            known = self._constants[node.name] = self._compute(known, {}).detach().clone()
        return known

    def deferred(self, node: Node) -> Deferred | None:
        """Returns how a constant is to be computed; None for what is no constant, or is known already."""
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
        """Returns a constant that is what an op gives on constants, computed when it is asked for.

        The same op on the same constants is one constant: weights that two sites share stay shared. Its fake value is
        like `fake` and nobody else's: placeholders with one value would be one parameter to torch.
        """
        key = repr((op, args, sorted(kwargs.items())))
        if key not in self._computed:
            if self._first.op != "placeholder":
                self._first = self._first_of_inputs()  # of a program without inputs: an op, which may be gone by now
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
        """Returns what an op gives on fake tensors, for every size: once for each dtype, shape and strides of these.

        Layers of one shape have these values in common, as the `meta["val"]` of their nodes: making a fake tensor of
        symbolic sizes takes a millisecond. A placeholder must have one of its own.

        Raises:
            GuardError: the op needs a guard that the program does not have.
        """
        key = (op, key_of(args), key_of(list(kwargs.items())))
        if key not in self.results:
            result = run_for_all_sizes(self.mode, lambda: op(*args, **kwargs))
            if free_unbacked_symbols(result):
                return result  # sizes that the data decides are of this call alone
            self.results[key] = result
        return self.results[key]

    def computed(self) -> dict[str, torch.Tensor]:
        """Returns the constants that were computed and are read, by the name of their node."""
        used = [node for node in self._computed.values() if node.users]
        tensors = ((node.name, self.constant(node)) for node in used)
        return {name: tensor for name, tensor in tensors if tensor is not None}

    def may_require_grad(self, node: Node) -> bool:
        """Whether anything that a node is computed from may be differentiated by: a parameter, a buffer, an input."""
        seen, queue = {node}, [node]
        while queue:
            node = queue.pop()
            if node.op == "placeholder" and not self.is_constant(node):
                return True
            queue.extend(operand for operand in node.all_input_nodes if operand not in seen)
            seen.update(node.all_input_nodes)
        return False

    def node(self, name: str) -> Node:
        """Returns the node of that name in the program, or what stands in its place now.

        Raises:
            Refused: there is none (any more, or yet).
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

    def current(self, node: Node) -> Node:
        """Returns what stands in the place of a node now: itself, unless it was replaced."""
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def name(self, node: Node) -> str:
        """Returns the name by which `node` finds a node, whatever steps were executed before: the program's own name.

        A node made in the place of another answers to the other's name; one made on the way to `NODE/RULE/NAME`: what
        the rule calls it, and the node replaced.
        """
        return self._origins.get(node, node.name)

    def name_read_by(self, reader: Node, operand: Node) -> str:
        """Returns the name under which a node reads an operand: the program's, before steps put another in its place.

        It finds the operand whether or not those steps are executed, so that a plan holds when they are removed.
        """
        return self._read_as.get(reader, {}).get(operand) or self.name(operand)

    def create(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str, read_as: Mapping[Node, str]
    ) -> Node:
        """Creates a call at the graph's insertion point; `read_as` names its operands as `name_read_by` does."""
        node = self.graph.create_node("call_function", op, args, kwargs, name)
        self._touch(node, *node.all_input_nodes)
        self._read_as[node] = {operand: read_as[operand] for operand in node.all_input_nodes if operand in read_as}
        return node

    def refer(self, node: Node, reference: str) -> str:
        """Lets a node that a step made be found by a reference, numbered where it is taken; returns it."""
        taken = sum(known.partition("~")[0] == reference for known in self._nodes) if reference in self._nodes else 0
        reference = f"{reference}~{taken + 1}" if taken else reference
        self._nodes[reference] = node
        self._origins.setdefault(node, reference)
        return reference

    def replace(self, node: Node, new: Node, *, made: bool) -> None:
        """Lets `new` be read in the place of a node; `made` says that it was created for it."""
        self._touch(node, new, *node.users)
        for reader in node.users:
            self._read_as.setdefault(reader, {}).setdefault(new, self.name_read_by(reader, node))
        node.replace_all_uses_with(new)
        self._replaced[node] = new
        if made:
            self._origins[new] = self.name(node)

    def erase(self, node: Node) -> None:
        """Removes a node that nobody reads."""
        self._touch(node, *node.all_input_nodes)
        self.graph.erase_node(node)

    def relay(self, node: Node, fake: Any) -> None:
        """Gives a node another fake value: its strides changed."""
        self._changed[node] = None
        node.meta["val"] = fake

    def clean(self) -> None:
        """Removes the nodes that compute nothing that is used any more."""
        queue, self._loose = list(self._loose), {}
        while queue:
            node = queue.pop()
            if not node._erased and not node.users and not node.is_impure():
                queue.extend(node.all_input_nodes)
                self.erase(node)

    def _touch(self, *nodes: Node) -> None:
        """Notes nodes that are new, erased, or have other operands or readers."""
        noted = dict.fromkeys(nodes)
        self._changed.update(noted)
        self._loose.update(noted)

    def take_changed(self) -> list[Node]:
        """Returns the nodes that are new, erased, or have other operands, readers or values than at the last call."""
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
