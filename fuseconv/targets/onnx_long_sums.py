"""Makes float32 reductions over many elements accurate on a CPU.

ONNX Runtime adds the elements of a reduction in one running sum, or in a few, however many they are. The rounding error
of a running sum grows with its length. PyTorch adds blocks and then the sums of the blocks, so its error hardly grows.
This module reduces one axis after another, and a long axis in blocks: the sums are then short, and no slower. An axis
of dynamic size cannot be reshaped into blocks without a copy. It is reduced in float64, as are cumulative sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir
from onnx_ir.tape import Tape

from fuseconv.targets.onnx_sizes import Sizes

SHORT = 2048
"""The longest accurate running sum. With random elements of one sign, the relative error of a sum of this length is
about 7 eps, and 10 eps or more at twice the length. The relative tolerance of float32 outputs is 11 eps."""

SHORT_IN_ROWS = 8 * SHORT
"""The longest accurate ReduceSum, ReduceMean and LayerNormalization over the last axes: these keep 8 running sums."""

_PARTIAL = {
    "ReduceL1": "ReduceL1",
    "ReduceL2": "ReduceL2",
    "ReduceLogSumExp": "ReduceLogSumExp",
    "ReduceMean": "ReduceMean",
    "ReduceSum": "ReduceSum",
    "ReduceSumSquare": "ReduceSum",
}
"""Maps each reduction to the reduction that combines its results for parts of the elements."""


def split_long_sums(model: ir.Model, sizes: Sizes) -> None:
    """Replaces each reduction and CumSum of float32 elements that may add more elements than are accurate.

    Other reductions are left unchanged, as are those whose input shape or axes are unknown. Sizes of unknown range
    count as 1.

    Args:
        model: the model, which is changed in place.
        sizes: the ranges of the sizes in the shapes of the model.
    """
    for node in list(model.graph.all_nodes()):
        value = node.inputs[0] if node.inputs else None
        if node.domain or value is None or value.dtype != ir.DataType.FLOAT or value.shape is None:
            continue
        if node.op_type == "CumSum":
            axes = _axes(node)
            if axes and sizes.largest(value.shape[axes[0]]) > SHORT:
                tape = Tape()
                _replace(node, tape, _in_float64(tape, "CumSum", [value, node.inputs[1]], node.attributes))
        elif node.op_type in _PARTIAL:
            _split(node, value, value.shape, sizes)


def _axes(node: ir.Node) -> list[int]:
    """Returns the non-negative axes of a reduction in ascending order, or none if they are not constant."""
    assert node.inputs[0] is not None
    assert node.inputs[0].shape is not None
    rank = len(node.inputs[0].shape)
    given = node.inputs[1] if len(node.inputs) > 1 else None
    constant = ir.convenience.get_const_tensor(given) if given is not None else None
    if given is not None and constant is None:
        return []
    axes = [] if constant is None else sorted(int(axis) % rank for axis in constant.numpy().reshape(-1))
    return axes or ([] if node.attributes.get_int("noop_with_empty_axes", 0) else list(range(rank)))


def _split(node: ir.Node, value: ir.Value, shape: ir.Shape, sizes: Sizes) -> None:
    """Replaces a reduction if it may add too many elements."""
    axes = _axes(node)
    lengths = {axis: sizes.largest(shape[axis]) for axis in axes}
    if 0 in lengths.values() or math.prod(lengths.values()) <= _accurate(node.op_type, axes, len(shape)):
        return
    blocks = {
        axis: [] if lengths[axis] <= _accurate(node.op_type, [axis], len(shape)) else _blocks(shape[axis])
        for axis in axes
    }
    tape, reduction = Tape(), node.op_type
    for axis in sorted(axes, key=lambda axis: (blocks[axis] is None, -axis)):  # in float64 when little is left
        constant = _constant(tape, [axis])
        lengths_of_blocks = blocks[axis]
        if lengths_of_blocks is None:
            value = _in_float64(tape, reduction, [value, constant], {})
        else:
            for length in lengths_of_blocks:
                rows = tape.op("Reshape", [value, _block_shape(tape, value, axis, length)], {"allowzero": 1})
                value = tape.op(reduction, [rows, _constant(tape, [axis + 1])], {"keepdims": 0})
                reduction = _PARTIAL[reduction]
            value = tape.op(reduction, [value, constant])
        reduction = _PARTIAL[reduction]
    if not node.attributes.get_int("keepdims", 1):
        value = tape.op("Squeeze", [value, _constant(tape, axes)])
    _replace(node, tape, value)


def _accurate(reduction: str, axes: Sequence[int], rank: int) -> int:
    """Returns the number of elements that a reduction over these axes adds accurately."""
    in_rows = reduction in ("ReduceMean", "ReduceSum") and list(axes) == list(range(rank - len(axes), rank))
    return SHORT_IN_ROWS if in_rows else SHORT


def _blocks(size: int | ir.SymbolicDim) -> list[int] | None:
    """Returns lengths of blocks by which a size is divided in turn until it is short, or None if there are none."""
    lengths = []
    while not (isinstance(size, int) and size <= SHORT):
        if not isinstance(size, int):
            return None
        longest = min(SHORT, math.isqrt(size))
        length = next((length for length in range(longest, longest // 16, -1) if size % length == 0), None)
        if length is None:
            return None
        lengths.append(length)
        size //= length
    return lengths


def _block_shape(tape: Tape, value: ir.Value, axis: int, length: int) -> ir.Value:
    """Returns the shape [..., size / length, length, ...] of a value whose axis is divided into blocks."""
    before = tape.op("Shape", [value], {"end": axis})
    size = tape.op("Shape", [value], {"start": axis, "end": axis + 1})
    after = tape.op("Shape", [value], {"start": axis + 1})
    block = _constant(tape, [length])
    return tape.op("Concat", [before, tape.op("Div", [size, block]), block, after], {"axis": 0})


def _in_float64(
    tape: Tape, op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, ir.Attr]
) -> ir.Value:
    wide = tape.op("Cast", inputs[:1], {"to": ir.DataType.DOUBLE})
    return tape.op("Cast", [tape.op(op_type, [wide, *inputs[1:]], attributes)], {"to": ir.DataType.FLOAT})


def _constant(tape: Tape, numbers: list[int]) -> ir.Value:
    return tape.op("Constant", [], {"value_ints": numbers})


def _replace(node: ir.Node, tape: Tape, result: ir.Value) -> None:
    assert node.graph is not None
    ir.convenience.replace_nodes_and_values(node.graph, node, [node], tape.nodes, [node.outputs[0]], [result])
