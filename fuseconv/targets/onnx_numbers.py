"""Numbers of a float64 program in ONNX: the exporter and ONNX Runtime's optimiser would round them to float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

PRODUCT = "...ij,...jk->...ik"
"""An Einsum of matrices, which ONNX Runtime does not merge with what scales them."""


def numbers_of(exported: torch.export.ExportedProgram) -> dict[float, float]:
    """Returns the numbers that nodes of a program are called with and float32 cannot hold, by what it makes of them.

    There are none in a program without a value of float64.
    """
    nodes = [node for graph in _graphs(exported) for node in graph.nodes]
    values = (value for node in nodes for value in pytree.tree_leaves(node.meta.get("val")))
    if not any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values):
        return {}
    given = (value for node in nodes for value in pytree.tree_leaves((node.args, dict(node.kwargs))))
    numbers = {value for value in given if isinstance(value, float) and np.isfinite(value)}
    return {float(np.float32(number)): number for number in numbers if float(np.float32(number)) != number}


def write_exactly(model: ir.Model, numbers: dict[float, float]) -> None:
    """Gives every cast of what float32 made of a number the number in float64.

    It is called before constants are folded: what they are folded into is exact then.
    """
    if not numbers:
        return
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0].producer() if _may_give_float64(node) and node.inputs[0] is not None else None
        value = _number(source) if source is not None else None
        if value is None or value.item() not in numbers:
            continue
        number = ir.tensor(np.full(value.shape, numbers[value.item()], np.float64))
        exact = ir.node("Constant", [], attributes={"value": number})
        exact.outputs[0].type, exact.outputs[0].shape = ir.TensorType(number.dtype), number.shape
        node.graph.insert_before(node, exact)
        node.replace_input_with(0, exact.outputs[0])


def _may_give_float64(node: ir.Node) -> bool:
    if node.op_type == "Cast":
        return bool(node.attributes["to"].as_int() == ir.DataType.DOUBLE)
    return bool(node.op_type == "CastLike")


def _graphs(exported: torch.export.ExportedProgram) -> Iterator[torch.fx.Graph]:
    yield from (module.graph for module in exported.graph_module.modules() if isinstance(module, GraphModule))


def _number(node: ir.Node) -> Any:
    """Returns the array of a constant that is one float32 number."""
    if node.op_type != "Constant":
        return None
    if (attribute := node.attributes.get("value_float")) is not None:
        return np.float32(attribute.as_float())
    tensor = node.attributes["value"].as_tensor() if "value" in node.attributes else None
    return tensor.numpy() if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1 else None


def keep_factors(model: ir.Model) -> None:
    """Writes a float64 product of matrices that is scaled as an Einsum, which ONNX Runtime leaves as it is.

    It would take the factor into a MatMul, and hold it there in float32.
    """
    for node in list(model.graph.all_nodes()):
        operands = [value for value in node.inputs if value is not None]
        if node.op_type != "MatMul" or not all(_is_matrix(value) for value in operands):
            continue
        made = (value.producer() for value in operands)
        read = (use.node for use in node.outputs[0].uses())
        if any(_scales(one) for one in (*made, *read) if one is not None):
            node.op_type = "Einsum"
            node.attributes["equation"] = ir.AttrString("equation", PRODUCT)
            _give_equal_ranks(node)


def _is_matrix(value: ir.Value) -> bool:
    return value.dtype == ir.DataType.DOUBLE and value.shape is not None and len(value.shape) >= 2


def _give_equal_ranks(node: ir.Node) -> None:
    """Puts axes of 1 before those of the operand that has fewer: an Einsum's `...` stands for as many in each."""
    ranks = [len(value.shape) for value in node.inputs if value is not None and value.shape is not None]
    for at, value in enumerate(node.inputs):
        missing = max(ranks) - ranks[at]
        if missing:
            axes = ir.node("Constant", [], attributes={"value_ints": list(range(missing))})
            more = ir.node("Unsqueeze", [value, axes.outputs[0]])
            assert node.graph is not None
            node.graph.insert_before(node, [axes, more])
            node.replace_input_with(at, more.outputs[0])


def _scales(node: ir.Node) -> bool:
    factors = (ir.convenience.get_const_tensor(value) for value in node.inputs if value is not None)
    return node.op_type in ("Mul", "Div") and any(one is not None and one.size == 1 for one in factors)
