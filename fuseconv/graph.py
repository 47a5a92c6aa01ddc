"""The working graph of planning and rewriting: a copy of a program's graph, its constants, and how it is read.

The copy shares weights and fake values with the program; only nodes and edges are its own.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

import fuseconv.ops  # noqa: F401  # registers the ops that rules put in place
from fuseconv.contract import DTYPES, SHORT_DTYPES
from fuseconv.predicates import Refused
from fuseconv.steps import Binding

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = str(Path(torch.__file__).parent)
_STATE_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class Workspace:
    """A program's graph, copied to be rewritten.

    Attributes:
        graph: the copy; node names are those of the program.
        root: the program's graph module: holds the submodules of control flow.
        ranges: symbolic size to the range declared for it.
        mode: the fake mode of the program's values; None for a program that holds no tensor.
        trainable: whether parameters and buffers may change and gradients must flow as they did.
    """

    def __init__(self, exported: torch.export.ExportedProgram, *, trainable: bool = False) -> None:
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
        self._states = _states(exported)
        fixed = (InputKind.CONSTANT_TENSOR,) if trainable else _STATE_KINDS
        self._constants = {name: tensor for name, (kind, tensor) in self._states.items() if kind in fixed}
        self.clean()
        self._nodes: dict[str, Node] = {node.name: node for node in self.graph.nodes}
        self._replaced: dict[Node, Node] = {}
        self._origins: dict[Node, str] = {}

    def is_state(self, node: Any) -> bool:
        """Whether a node stands for a parameter, buffer or constant of the model."""
        return isinstance(node, Node) and node.op == "placeholder" and node.name in self._states

    def constant(self, node: Any) -> torch.Tensor | None:
        """Returns the tensor behind a placeholder whose values never change, so that they may be read; else None.

        Of a trainable program those are the literals of its `forward` alone.
        """
        return self._constants.get(node.name) if isinstance(node, Node) and node.op == "placeholder" else None

    def may_require_grad(self, node: Node) -> bool:
        """Whether anything that a node is computed from may be differentiated by: a parameter, a buffer, an input."""
        seen, queue = {node}, [node]
        while queue:
            node = queue.pop()
            if node.op == "placeholder" and self.constant(node) is None:
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
            made_of = max((known for known in self._nodes if name.endswith(f"_{known}")), key=len, default=None)
            made = f" (an earlier step makes it from {made_of})" if made_of else ""
            raise Refused(f"a node {name}{made}", "no node of that name")
        node = self.current(node)
        if node._erased:
            raise Refused(f"a node {name}", "that an earlier step removes it")
        return node

    def current(self, node: Node) -> Node:
        """Returns what stands in the place of a node now: itself, unless it was replaced."""
        while node in self._replaced:
            node = self._replaced[node]
        return node

    def name(self, node: Node) -> str:
        """Returns the name by which `node` finds a node, whatever steps were executed before: the program's own name.

        A node made in the place of another answers to the other's name; one made on the way has but its own.
        """
        return self._origins.get(node, node.name)

    def create(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Node:
        """Creates a call at the graph's insertion point."""
        node = self.graph.create_node("call_function", op, args, kwargs, name)
        self._nodes[node.name] = node
        return node

    def replace(self, node: Node, new: Node, *, made: bool) -> None:
        """Lets `new` be read in the place of a node; `made` says that it was created for it."""
        node.replace_all_uses_with(new)
        self._replaced[node] = new
        if made:
            self._origins[new] = self.name(node)

    def clean(self) -> None:
        """Removes the nodes that compute nothing that is used."""
        self.graph.eliminate_dead_code()


def _states(exported: torch.export.ExportedProgram) -> dict[str, tuple[InputKind, torch.Tensor]]:
    signature = exported.graph_signature
    mutated = set(signature.buffers_to_mutate.values())
    tables: tuple[Mapping[str, Any], ...] = (exported.state_dict, exported.constants)
    states = {}
    for spec in signature.input_specs:
        if spec.kind in _STATE_KINDS and spec.target not in mutated:
            tensor = next((table[spec.target] for table in tables if spec.target in table), None)
            if isinstance(tensor, torch.Tensor):
                states[spec.arg.name] = (spec.kind, tensor)
    return states


def is_call(node: Any) -> bool:
    """Whether a node calls an op of torch.ops."""
    return isinstance(node, Node) and node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def is_getitem(node: Any) -> bool:
    """Whether a node takes one result of an op that has several."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is operator.getitem


def op_name(target: Any) -> str:
    """Returns an op as rules write it: `aten.gelu.default`."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def find_op(name: str) -> torch._ops.OpOverload | None:
    """Returns the op a rule names, or None when no loaded library has it."""
    namespace, packet, overload = name.split(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


def arguments(node: Node) -> dict[str, Any]:
    """Returns every argument of an op call by its schema name, defaults filled in."""
    assert isinstance(node.target, torch._ops.OpOverload)
    values = {}
    for at, argument in enumerate(node.target._schema.arguments):
        if not argument.kwarg_only and at < len(node.args):
            values[argument.name] = node.args[at]
        elif argument.name in node.kwargs:
            values[argument.name] = node.kwargs[argument.name]
        else:
            values[argument.name] = argument.default_value
    return values


def nodes_in(value: Any) -> Iterator[Node]:
    """Yields the nodes in an argument, lists included."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)


def map_nodes(value: Any, change: Callable[[Node], Any]) -> Any:
    """Returns the argument with every node in it changed."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, list | tuple):
        return [map_nodes(item, change) for item in value]
    return value


def source_line(node: Node) -> str:
    """Returns the model's own innermost source line for a node, `file:line in function`; empty where none is known."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return "{}:{} in {}".format(*own[-1]) if own else ""


def to_binding(value: Any, name: Callable[[Node], str]) -> Binding:
    """Returns an argument of a node as JSON; `name` says how a node is called.

    Raises:
        Refused: the argument is of a kind that plan.json cannot hold.
    """
    if isinstance(value, Node):
        return {"node": name(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    if isinstance(value, list | tuple):
        return {"items": [to_binding(item, name) for item in value]}
    if isinstance(value, torch.dtype):
        return {"dtype": SHORT_DTYPES.get(str(value), str(value).removeprefix("torch."))}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.layout):
        return {"layout": str(value).removeprefix("torch.")}
    if isinstance(value, torch.memory_format):
        return {"memory_format": str(value).removeprefix("torch.")}
    raise Refused("an argument that a plan can hold", repr(value))


def from_binding(binding: Binding, nodes: Callable[[str], Node]) -> Any:
    """Returns the argument that `to_binding` wrote.

    Raises:
        Refused: the binding is of no known kind, or names a node that is not there.
    """
    match binding:
        case {"node": str() as name}:
            return nodes(name)
        case {"value": None | bool() | int() | float() | str() as value}:
            return value
        case {"items": list() as items}:
            return [from_binding(item, nodes) for item in items]
        case {"number": "inf" | "-inf" | "nan" as number}:
            return float(number)
        case {"dtype": str() as name} if isinstance(
            dtype := getattr(torch, DTYPES.get(name, name).removeprefix("torch."), None), torch.dtype
        ):
            return dtype
        case {"device": "cpu" | "cuda" | "meta" as name}:
            return torch.device(name)
        case {"layout": str() as name} if isinstance(found := getattr(torch, name, None), torch.layout):
            return found
        case {"memory_format": str() as name} if isinstance(found := getattr(torch, name, None), torch.memory_format):
            return found
    raise Refused('a binding as {"node": NAME} or {"value": VALUE}', str(binding))
