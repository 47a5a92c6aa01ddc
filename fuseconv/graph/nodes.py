"""Queries about graph nodes: the op that a node calls, the arguments of the call, and its source line in the model."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.value_ranges import bound_sympy

from fuseconv.graph.aten import Facts, facts
from fuseconv.graph.op_aliases import canonical
from fuseconv.untrusted.permitted import lookup, refusal

_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_TORCH = str(Path(torch.__file__).parent)


def is_call(node: Any) -> bool:
    """Returns whether a node calls an op of torch.ops."""
    return isinstance(node, Node) and node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload)


def is_getitem(node: Any) -> bool:
    """Returns whether a node selects one result of a node that returns several."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is operator.getitem


def op_name(target: Any) -> str:
    """Returns the name of an op as written in rules, such as `aten.gelu.default`."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def find_op(name: str) -> torch._ops.OpOverload | None:
    """Returns the op with a name from a rule, an example or a plan.

    Returns None if the op is unknown or not permitted, or if the name is an alias, because captured programs contain no
    aliases.
    """
    op = lookup(name)
    return None if op is None or refusal(op) or canonical(op) is not op else op


def why_no_op(name: str) -> str:
    """Returns an error message that explains why `find_op` returns None for a name."""
    op = lookup(name)
    if op is None:
        return f"unknown op {name}"
    if canonical(op) is not op:
        return f"{name} is an alias: exported programs call {canonical(op)}"
    return f"the op {name} is not permitted: {refusal(op)}"


def is_returned(node: Node) -> bool:
    """Returns whether a node is an output of the program."""
    return any(user.op == "output" for user in node.users)


def is_repeatable(op: torch._ops.OpOverload, value: Any) -> bool:
    """Returns whether an op is a pure function of its arguments: not random, and without in-place writes.

    Args:
        op: the op to examine.
        value: the op's result on fake tensors. Returns False if a size of the result depends on data.
    """
    return not facts(op).writes and not facts(op).draws and not free_unbacked_symbols(value)


def arguments(node: Node) -> dict[str, Any]:
    """Returns all arguments of an op call by their names in the schema, including defaults."""
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
    """Yields the nodes in an argument, including the nodes in nested lists and tuples."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)


def facts_of(node: Node) -> Facts:
    """Returns the properties of the op that a node calls; see `aten.Facts`."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return facts(node.target)


def draws(node: Node) -> bool:
    """Returns whether a node generates random numbers. A dropout with probability 0 or an op in eval mode does not."""
    if not is_call(node) or not facts_of(node).draws:
        return False
    given = arguments(node)
    trains = all(given.get(name) is not False for name in ("train", "training"))
    return trains and not any(given.get(name) == 0 for name in ("p", "dropout_p"))


def trains(node: Node) -> bool:
    """Returns whether a node calls an op in training mode: a dropout that is on, or a norm that updates statistics."""
    given = arguments(node) if is_call(node) else {}
    if given.get("running_mean") is not None:
        return bool(given.get("training") or given.get("use_input_stats"))
    return draws(node) and not given.keys().isdisjoint({"train", "training", "dropout_p"})


def written(node: Node) -> Iterator[Node]:
    """Yields the operands that an op call mutates."""
    if is_call(node):
        known = facts_of(node)
        given = arguments(node) if known.writes or known.statistics else {}
        updated = ("running_mean", "running_var") if given.get(known.statistics) else ()
        for name in (*known.writes, *updated):
            yield from nodes_in(given[name])


def map_nodes(value: Any, change: Callable[[Node], Any]) -> Any:
    """Returns an argument with every node in it, also in lists, replaced by the result of `change`."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, list | tuple):
        return [map_nodes(item, change) for item in value]
    return value


def may_squeeze(node: Node, ranges: Mapping[Any, Any]) -> bool:
    """Returns whether a node is a squeeze of an axis whose declared range contains 1.

    Such a squeeze removes the axis if its size is 1 and keeps the axis otherwise. The shapes in the graph always keep
    the axis, because torch.export assumes that every size is at least 2.
    """
    if not is_call(node) or not op_name(node.target).startswith("aten.squeeze."):
        return False
    fake, values = arguments(node)["self"].meta["val"], arguments(node)
    axes = values.get("dim", range(fake.dim()))
    sizes = [fake.shape[axis] for axis in ([axes] if isinstance(axes, int) else axes)] if fake.dim() else []
    return any(isinstance(size, torch.SymInt) and 1 in bound_sympy(size.node.expr, dict(ranges)) for size in sizes)


def squeezed(graph: Graph, ranges: Mapping[Any, Any]) -> dict[Node, Node]:
    """Finds the nodes whose rank depends on a squeeze: if a size is 1, they have fewer axes than the graph records.

    Returns:
        A map from each such node to the node that determines its shape. Two nodes that map to the same node have the
        same shape; two nodes that map to different nodes may have different shapes.
    """
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        given = node.all_input_nodes
        if op_name(node.target) in _RESHAPES:  # the shape argument decides, not the shape of the operand
            given = [one for one in given if one is not node.args[0]]
        deciding = {found.get(one) for one in given if _is_symbolic(one.meta.get("val"))}
        if may_squeeze(node, ranges) or len(deciding) > 1:
            found[node] = node
        elif (first := next(iter(deciding), None)) is not None:
            found[node] = first
    return found


_RESHAPES = ("aten.view.default", "aten.reshape.default", "aten.expand.default")


def _is_symbolic(value: Any) -> bool:
    sizes = value.shape if isinstance(value, torch.Tensor) else [value]
    return any(isinstance(size, torch.SymInt) for size in sizes)


def source_line(node: Node) -> str:
    """Returns the source line of the model that created a node, as `file:line in function`.

    Returns the innermost line outside torch, or an empty string if the node has no stack trace.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return "{}:{} in {}".format(*own[-1]) if own else ""
