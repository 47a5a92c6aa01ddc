"""Preserves float64 numbers in ONNX, which the exporter and ONNX Runtime's optimizer would round to float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

PRODUCT = "...ij,...jk->...ik"
"""The equation of an Einsum that computes a matrix product. ONNX Runtime does not fuse an Einsum with a scale."""


def numbers_of(exported: torch.export.ExportedProgram) -> dict[float, float]:
    """Maps the float32 value of each constant that float32 cannot represent exactly to the constant.

    Returns an empty dict for a program without float64 tensors.
    """
    nodes = [node for graph in _graphs(exported) for node in graph.nodes]
    values = (value for node in nodes for value in pytree.tree_leaves(node.meta.get("val")))
    if not any(isinstance(value, torch.Tensor) and value.dtype == torch.float64 for value in values):
        return {}
    given = (value for node in nodes for value in pytree.tree_leaves((node.args, dict(node.kwargs))))
    numbers = {value for value in given if isinstance(value, float) and np.isfinite(value)}
    return {float(np.float32(number)): number for number in numbers if float(np.float32(number)) != number}


def write_exactly(model: ir.Model, numbers: dict[float, float]) -> None:
    """Makes each cast of a rounded float32 constant to float64 read the exact float64 constant instead.

    This must run before constant folding, so that folded constants are exact.

    Args:
        model: the model, which is changed in place.
        numbers: the result of `numbers_of`.
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
    """Returns the value of a Constant node that has a single float32 element, or None for any other node."""
    if node.op_type != "Constant":
        return None
    if (attribute := node.attributes.get("value_float")) is not None:
        return np.float32(attribute.as_float())
    tensor = node.attributes["value"].as_tensor() if "value" in node.attributes else None
    return tensor.numpy() if tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size == 1 else None


def keep_factors(model: ir.Model) -> None:
    """Replaces each float64 MatMul that is scaled by a constant with an Einsum.

    ONNX Runtime would fuse the scale into a MatMul as float32. It does not fuse a scale into an Einsum.
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
    """Prepends axes of size 1 to the operand of lower rank, because `...` in an Einsum requires equal ranks."""
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
