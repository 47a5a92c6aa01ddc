"""Writes out LayerNormalization over many float32 elements, which ONNX Runtime computes inaccurately on a CPU.

The kernel adds all elements, and all their squares, in a few running sums. The basic operators that replace it are
those of a group norm, and `onnx_long_sums` makes their means accurate.
"""

from __future__ import annotations

import math

import onnx_ir as ir
from onnx_ir.tape import Tape

from fuseconv.targets.onnx_long_sums import SHORT_IN_ROWS
from fuseconv.targets.onnx_sizes import Sizes


def write_out_long_layer_norms(model: ir.Model, sizes: Sizes) -> None:
    """Replaces each float32 LayerNormalization that may add more elements than are accurate.

    A LayerNormalization whose mean or standard deviation is used elsewhere is left unchanged.

    Args:
        model: the model, which is changed in place.
        sizes: the ranges of the sizes in the shapes of the model.
    """
    for node in list(model.graph.all_nodes()):
        if node.op_type != "LayerNormalization" or any(output.uses() for output in node.outputs[1:]):
            continue
        x, weight, bias = [*node.inputs, None][:3]
        assert x is not None
        if x.dtype != ir.DataType.FLOAT or x.shape is None:
            continue
        axes = list(range(len(x.shape)))[node.attributes.get_int("axis", -1) :]
        if math.prod(sizes.largest(x.shape[axis]) for axis in axes) <= SHORT_IN_ROWS:
            continue
        tape = Tape()
        value = x
        for _ in range(2):  # the second time removes the rounding error of the first mean
            value = tape.op("Sub", [value, _mean(tape, value, axes, x)])
        variance = _mean(tape, tape.op("Mul", [value, value]), axes, x)
        eps = tape.op("Constant", [], {"value_float": node.attributes.get_float("epsilon", 1e-5)})
        result = tape.op("Div", [value, tape.op("Sqrt", [tape.op("Add", [variance, eps])])])
        result = tape.op("Mul", [result, weight])
        if bias is not None:
            result = tape.op("Add", [result, bias])
        assert node.graph is not None
        ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, [node.outputs[0]], [result])


def _mean(tape: Tape, value: ir.Value, axes: list[int], x: ir.Value) -> ir.Value:
    """Returns the mean of a value that has the shape and dtype of x."""
    value.shape, value.dtype = x.shape, x.dtype
    return tape.op("ReduceMean", [value, tape.op("Constant", [], {"value_ints": axes})])
