"""Makes the axes of reductions non-negative: for empty tensors, ONNX Runtime 1.31 mishandles negative axes."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir


def count_axes_from_the_first(nodes: Iterable[ir.Node]) -> None:
    """Replaces negative axes with non-negative axes in Reduce*, ArgMax and ArgMin nodes whose input rank is known."""
    for node in list(nodes):
        if node.domain or not node.op_type.startswith(("Reduce", "Arg")) or node.inputs[0] is None:
            continue
        shape = node.inputs[0].shape
        if shape is None or not len(shape):
            continue  # the exporter does not know ranks inside its own functions
        if node.op_type.startswith("Arg"):
            axis = node.attributes.get_int("axis", 0)
            node.attributes["axis"] = ir.AttrInt64("axis", axis % len(shape))
            continue
        given = ir.convenience.get_const_tensor(node.inputs[1]) if len(node.inputs) > 1 else None
        if given is not None and (given.numpy() < 0).any():
            axes = [int(axis) % len(shape) for axis in given.numpy().reshape(-1)]
            constant = ir.node("Constant", [], attributes={"value_ints": axes})
            node.graph.insert_before(node, constant)
            node.replace_input_with(1, constant.outputs[0])
