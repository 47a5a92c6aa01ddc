"""Finds matrix products for which ONNX Runtime has no kernel, before a model is exported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

from fuseconv.graph.nodes import is_call
from fuseconv.ops import NAMESPACE, OPS
from fuseconv.program.captured import Program

_PRODUCTS = frozenset(getattr(torch.ops.aten, name) for name in ("mm", "bmm", "addmm", "baddbmm", "linear", "matmul"))
"""The ops that the exporter turns into Gemm or MatMul. ONNX Runtime has kernels for both or for neither."""

_OPS = {op.name: op for op in OPS}


def missing_product(program: Program, *, own_kernels: bool) -> str | None:
    """Describes the first matrix product of a dtype that ONNX Runtime cannot multiply on the CPU, or returns None.

    On CUDA, ONNX Runtime has kernels for products in every floating dtype.

    Args:
        program: the program to export.
        own_kernels: whether the kernels of fuseconv's library compute fuseconv's ops. If not, ONNX Runtime computes the
            standard ops of which they consist.
    """
    if program.contract.device != "cpu":
        return None
    for node in program.exported.graph.nodes:
        for dtype in _multiplied(node, own_kernels=own_kernels) if is_call(node) else ():
            if not _multiplies(dtype):
                name = str(dtype).removeprefix("torch.")
                return f"ONNX Runtime on cpu has no kernel for the {name} product {node.name}: convert with --dtype f32"
    return None


def _multiplied(node: Node, *, own_kernels: bool) -> Iterator[torch.dtype]:
    """Yields the dtypes of the matrix products of a node, also of those in an op of fuseconv."""
    target: Any = node.target
    if target.overloadpacket in _PRODUCTS:
        yield node.meta["val"].dtype
    elif target.namespace == NAMESPACE and not own_kernels:
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda operand: operand.meta["val"])
        # The program shares the environment of its sizes: a guard on the example's sizes could make a size a constant.
        given = torch.utils._pytree.tree_leaves((args, kwargs))
        environment = next(one.fake_mode.shape_env for one in given if isinstance(one, FakeTensor))
        with _Products() as products, environment.suppress_guards() if environment else nullcontext():
            _OPS[target._schema.name.removeprefix(f"{NAMESPACE}::")].reference(*args, **kwargs)
        yield from products.dtypes


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the dtypes of the matrix products that run inside the `with` block."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: list[torch.dtype] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _PRODUCTS:
            self.dtypes.append(result.dtype)
        return result


@cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Returns whether ONNX Runtime has a kernel for the product of two matrices on the CPU.

    Returns True for a dtype that ONNX Runtime does not accept at all: the exporter reports such a dtype.
    """
    import onnxruntime
    from onnx import helper
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    from fuseconv.targets.onnx_export import OPSET
    from fuseconv.targets.onnx_session import element_types

    if dtype not in element_types():
        return True
    a, b, y = (helper.make_tensor_value_info(name, element_types()[dtype], [2, 2]) for name in "aby")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["y"])], "product", [a, b], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    try:
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except errors.NotImplemented:
        return False
    return True
