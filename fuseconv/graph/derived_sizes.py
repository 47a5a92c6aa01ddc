"""Computes the sizes of intermediate tensors from the sizes of the inputs.

torch.export reads a size such as `(height - 1) // 2 + 1` from the first tensor that has it, which is often the result
of a convolution whose batch norm and activation follow. As a user outside the match, the read would prevent a fusion
that removes this tensor, although it reads no value of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_READS = (torch.ops.aten.sym_size.int, torch.ops.aten.sym_numel.default)
_SIZE = torch.ops.aten.sym_size.int
_STEPS: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "CleanDiv": operator.floordiv,
    "Mod": operator.mod,
    "PythonMod": operator.mod,
}
"""Maps the functions of symbolic sizes to the operators that compute them."""


def read_sizes_of_inputs(exported: ExportedProgram) -> None:
    """Replaces each read of an intermediate tensor's size by arithmetic on the inputs' sizes, in place.

    A size that depends on values, such as the number of nonzero elements, is still read from its tensor. So is a size
    that needs other functions than those in `_STEPS`.
    """
    graph = exported.graph
    formulas = _Formulas(graph)
    changed = False
    for node in list(graph.nodes):
        formulas.note(node)
        if node.target not in _READS or _reads_an_input(node):
            continue
        size = node.meta.get("val")
        # A size that became a constant later in the trace is left as it is.
        if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer and formulas.knows(size.node.expr):
            with graph.inserting_before(node):
                computed = formulas.compute(size.node.expr)
            for key in ("stack_trace", "nn_module_stack"):
                if key in node.meta:
                    computed.meta.setdefault(key, node.meta[key])
            node.replace_all_uses_with(computed)
            graph.erase_node(node)
            changed = True
    if changed:
        graph.lint()
        exported.graph_module.recompile()


class _Formulas:
    """The sizes that the nodes of a graph compute, by their expressions."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[Any, Node] = {}
        self._axes: dict[Any, tuple[Node, int, int]] = {}
        for node in graph.find_nodes(op="placeholder"):
            value = node.meta.get("val")
            shape: Sequence[object] = value.shape if isinstance(value, torch.Tensor) else ()
            for axis, size in enumerate(shape):
                if isinstance(size, torch.SymInt):
                    self._add_axis(size.node.expr, node, axis)

    def _add_axis(self, expression: Any, node: Node, axis: int) -> None:
        """Records an axis whose size is a symbol, or a symbol times a constant factor."""
        factor, symbol = expression.as_coeff_Mul()
        if symbol.is_Symbol and factor.is_Integer and factor > 0:
            known = self._axes.get(symbol)
            if known is None or factor < known[2]:
                self._axes[symbol] = (node, axis, int(factor))

    def note(self, node: Node) -> None:
        """Records a node of the graph that reads the size of an input."""
        size = node.meta.get("val")
        if node.target is _SIZE and _reads_an_input(node) and isinstance(size, torch.SymInt):
            self._known.setdefault(size.node.expr, node)

    def knows(self, expression: Any) -> bool:
        """Returns whether `compute` can compute an expression."""
        if expression in self._known or expression.is_Integer or expression in self._axes:
            return True
        return type(expression).__name__ in _STEPS and all(map(self.knows, expression.args))

    def compute(self, expression: Any) -> Any:
        """Returns the node that computes an expression, or the number. The nodes are created if they do not exist."""
        if expression.is_Integer:
            return int(expression)
        if expression not in self._known:
            self._known[expression] = self._computed(expression)
        return self._known[expression]

    def _computed(self, expression: Any) -> Node:
        if expression in self._axes:
            node, axis, factor = self._axes[expression]
            size = self._call(_SIZE, node, axis)
            if factor == 1:
                return size
            whole = self._known.setdefault(size.meta["val"].node.expr, size)
            return self._call(operator.floordiv, whole, factor)
        step = _STEPS[type(expression).__name__]
        numbers_last = sorted(expression.args, key=lambda part: part.is_Integer) if _commutes(step) else expression.args
        made: Node = reduce(lambda left, right: self._call(step, left, right), map(self.compute, numbers_last))
        return made

    def _call(self, target: Callable[..., Any], *args: Any) -> Node:
        node = self.graph.call_function(target, args)
        values = [arg.meta["val"] if isinstance(arg, Node) else arg for arg in args]
        node.meta["val"] = target(*values)
        return node


def _reads_an_input(node: Node) -> bool:
    return any(operand.op == "placeholder" for operand in node.all_input_nodes)


def _commutes(step: Callable[..., Any]) -> bool:
    return step in (operator.add, operator.mul)
