"""Which ONNX reductions are split, and that the parts compute what the whole computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import sympy
from onnx import TensorProto, helper, numpy_helper
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.targets.onnx_layer_norm import write_out_long_layer_norms
from fuseconv.targets.onnx_long_sums import SHORT, SHORT_IN_ROWS, split_long_sums
from fuseconv.targets.onnx_sizes import Sizes

ROW, LONG = SHORT_IN_ROWS, 3 * SHORT_IN_ROWS
SIZES = Sizes({sympy.Symbol("n"): ValueRanges(0, SHORT), sympy.Symbol("m"): ValueRanges(0, LONG)})


def model(
    op: str, shape: Sequence[int | str], axes: Sequence[int] | None, dtype: int = TensorProto.FLOAT, **attributes: Any
) -> ir.Model:
    """Returns a model of one node with the input x, and `axes` as the constant second input unless they are None."""
    return of_node(
        op,
        shape,
        [] if axes is None else [numpy_helper.from_array(np.array(axes, np.int64), "axes")],
        dtype,
        **attributes,
    )


def of_node(
    op: str, shape: Sequence[int | str], given: Sequence[TensorProto], dtype: int, **attributes: Any
) -> ir.Model:
    x, y = helper.make_tensor_value_info("x", dtype, shape), helper.make_tensor_value_info("y", dtype, None)
    nodes = [helper.make_node(op, ["x", *(one.name for one in given)], ["y"], **attributes)]
    graph = helper.make_graph(nodes, "graph", [x], [y], given)
    return ir.from_proto(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)]))


KEPT = {
    "a long row": model("ReduceMean", [4, ROW], [1]),
    "rows of two axes": model("ReduceSum", [4, 8, SHORT], [-2, -1]),
    "a short column": model("ReduceMean", [SHORT, 4], [0]),
    "a short norm": model("ReduceL2", [4, SHORT], [1]),
    "a short dynamic axis": model("ReduceL2", ["m", "n"], [1]),
    "an axis of unknown size": model("ReduceL2", ["m", "other"], [1]),
    "a short cumulative sum": model("CumSum", [LONG, SHORT], [1]),
    "float64": model("ReduceSum", [4, LONG], [1], TensorProto.DOUBLE),
    "float16": model("ReduceSum", [4, LONG], [1], TensorProto.FLOAT16),
    "integers": model("ReduceSum", [4, LONG], [1], TensorProto.INT32),
    "no addition": model("ReduceMax", [4, LONG], [1]),
    "no axes": model("ReduceSum", [4, LONG], [], noop_with_empty_axes=1),
    "a short layer norm": of_node(
        "LayerNormalization",
        [LONG, ROW],
        [numpy_helper.from_array(np.ones(ROW, np.float32), "scale")],
        TensorProto.FLOAT,
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_adds_few_elements_is_unchanged(name: str) -> None:
    original, rewritten = ir.to_proto(KEPT[name]), ir.from_proto(ir.to_proto(KEPT[name]))
    write_out_long_layer_norms(rewritten, SIZES)
    split_long_sums(rewritten, SIZES)
    assert ir.to_proto(rewritten).SerializeToString() == original.SerializeToString()


FORMS: dict[str, tuple[Sequence[int | str], Sequence[int] | None, dict[str, int]]] = {
    "a row": ([2, LONG], [1], {}),
    "a row, removed": ([2, LONG], [-1], {"keepdims": 0}),
    "a column": ([LONG, 2], [0], {"keepdims": 0}),
    "between": ([2, LONG, 3], [1], {}),
    "of prime size": ([2, 49157], [1], {"keepdims": 0}),
    "of dynamic size": ([2, "m"], [1], {}),
    "several axes": ([2, 3, 160, 129], [3, 1, 2], {"keepdims": 0}),
    "axes apart": ([2, 3, 160, 129], [0, -1, 2], {}),
    "all axes": ([2, 3, 160, 129], None, {"keepdims": 0}),
    "empty axes": ([2, 3, 160, 129], [], {}),
    "dynamic axes": (["n", "m"], [0, 1], {"keepdims": 0}),
}
REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean", "ReduceSum", "ReduceSumSquare")


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("form", FORMS)
def test_the_parts_compute_what_the_whole_computes(form: str, op: str) -> None:
    shape, axes, attributes = FORMS[form]
    whole = model(op, shape, axes, **attributes)
    parts = ir.from_proto(ir.to_proto(whole))
    split_long_sums(parts, SIZES)
    assert len(list(parts.graph)) > 1
    run, run_parts = session(whole), session(parts)
    x = np.random.default_rng(0).random(
        [size if isinstance(size, int) else {"n": 3, "m": LONG}[size] for size in shape], np.float32
    )
    special = x.copy()
    special.reshape(-1)[:ROW] = -np.inf  # all of some blocks
    for values in (x, special, np.where(x > 0.5, np.inf, x), np.where(x > 0.5, np.nan, x), x[:0]):
        if values.shape[0] == 0 and isinstance(shape[0], int):
            continue
        (found,), (expected,) = run_parts.run(None, {"x": values}), run.run(None, {"x": values})
        np.testing.assert_allclose(found, expected, rtol=2e-4)


def test_a_long_cumulative_sum_keeps_its_attributes() -> None:
    whole = model("CumSum", [2, LONG], [1], exclusive=1, reverse=1)
    parts = ir.from_proto(ir.to_proto(whole))
    split_long_sums(parts, SIZES)
    assert [node.op_type for node in parts.graph] == ["Cast", "CumSum", "Cast"]
    x = np.random.default_rng(0).random([2, LONG], np.float32)
    found, expected = (session(one).run(None, {"x": x})[0] for one in (parts, whole))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


def session(of: ir.Model) -> Any:
    proto = ir.to_proto(of)
    return onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
