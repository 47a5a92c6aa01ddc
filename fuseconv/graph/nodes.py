"""Queries about the nodes of a graph: the op they call, its arguments, and their source line in the model."""

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
    """Returns whether a node selects one result of an op that returns several."""
    return isinstance(node, Node) and node.op == "call_function" and node.target is operator.getitem


def op_name(target: Any) -> str:
    """Returns the name of an op as rules write it: `aten.gelu.default`."""
    return str(target) if isinstance(target, torch._ops.OpOverload) else getattr(target, "__name__", str(target))


def find_op(name: str) -> torch._ops.OpOverload | None:
    """Returns the op that a rule, an example or a plan names.

    Returns None for an unknown op, for an op that is not permitted, and for an alias, which no captured program
    contains.
    """
    op = lookup(name)
    return None if op is None or refusal(op) or canonical(op) is not op else op


def why_no_op(name: str) -> str:
    """Returns the reason why `find_op` returns None for a name."""
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
    """Returns whether an op gives the same result for the same arguments and mutates nothing.

    Args:
        op: the op.
        value: the op's result on fake tensors. If the result's sizes depend on data, the op counts as not repeatable.
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
    """Yields the nodes in an argument, including those in lists."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from nodes_in(item)


def facts_of(node: Node) -> Facts:
    """Returns the known properties of the op that a node calls."""
    assert isinstance(node.target, torch._ops.OpOverload)
    return facts(node.target)


def draws(node: Node) -> bool:
    """Returns whether a node generates random numbers. A dropout with probability 0 or in eval mode does not."""
    if not is_call(node) or not facts_of(node).draws:
        return False
    given = arguments(node)
    return given.get("train") is not False and not any(given.get(name) == 0 for name in ("p", "dropout_p"))


def written(node: Node) -> Iterator[Node]:
    """Yields the operands that an op call mutates."""
    if is_call(node):
        known = facts_of(node)
        given = arguments(node) if known.writes or known.statistics else {}
        updated = ("running_mean", "running_var") if given.get(known.statistics) else ()
        for name in (*known.writes, *updated):
            yield from nodes_in(given[name])


def map_nodes(value: Any, change: Callable[[Node], Any]) -> Any:
    """Replaces every node in an argument with the result of `change`."""
    if isinstance(value, Node):
        return change(value)
    if isinstance(value, list | tuple):
        return [map_nodes(item, change) for item in value]
    return value


def may_squeeze(node: Node, ranges: Mapping[Any, Any]) -> bool:
    """Returns whether an op removes an axis at size 1, but keeps the axis at the other sizes in the axis's range.

    torch.export assumes that every size is at least 2, so the recorded shapes keep the axis.
    """
    if not is_call(node) or not op_name(node.target).startswith("aten.squeeze."):
        return False
    fake, values = arguments(node)["self"].meta["val"], arguments(node)
    axes = values.get("dim", range(fake.dim()))
    sizes = [fake.shape[axis] for axis in ([axes] if isinstance(axes, int) else axes)] if fake.dim() else []
    return any(isinstance(size, torch.SymInt) and 1 in bound_sympy(size.node.expr, dict(ranges)) for size in sizes)


def squeezed(graph: Graph, ranges: Mapping[Any, Any]) -> dict[Node, Node]:
    """Finds the values that, because of a squeeze, have fewer axes than the graph records if a size is 1.

    Returns:
        A map from each such value to the node that determines the value's shape. Two values with the same node have the
        same shape; values with different nodes may have different shapes.
    """
    found: dict[Node, Node] = {}
    for node in graph.nodes:
        given = node.all_input_nodes
        if op_name(node.target) in _RESHAPES:  # the given shape decides, not the shape of the operand
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
    """Returns the model's innermost source line for a node, as `file:line in function`. Empty if unknown."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [frame for frame in frames if not frame[0].startswith(_TORCH)] or frames
    return "{}:{} in {}".format(*own[-1]) if own else ""
