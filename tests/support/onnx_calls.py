"""ONNX models that call our ops."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import onnxruntime
import torch
from onnx import NodeProto, helper
from torch import Tensor

from fuseconv.ops.op import Op, Sample
from fuseconv.targets.onnx_functions import DOMAIN, arguments_of, attributes_of, op_type, tensor_names
from fuseconv.targets.onnx_session import element_types

HAS_CUDA = torch.cuda.is_available() and "CUDAExecutionProvider" in onnxruntime.get_available_providers()


def node(op: Op[..., Any], sample: Sample, prefix: str) -> tuple[NodeProto, dict[str, Tensor]]:
    """A node that makes the sample's call, its name the prefix of its values' names; and its tensors by name."""
    given = arguments_of(op, sample.args, sample.kwargs)
    inputs = {f"{prefix}_{name}": given[name] for name in tensor_names(op)}
    attributes = {
        name: ir.to_proto(value) if isinstance(value, ir.Tensor) else value
        for name, value in attributes_of(op, given).items()
    }
    outputs = [f"{prefix}_y{index}" for index in range(len(op.overload._schema.returns))]
    names = ["" if value is None else name for name, value in inputs.items()]
    made = helper.make_node(
        op_type(op), names, outputs, domain=DOMAIN, **{k: v for k, v in attributes.items() if v != []}
    )
    made.attribute.extend(
        helper.make_attribute(k, v, attr_type=onnx.AttributeProto.INTS) for k, v in attributes.items() if v == []
    )
    return made, {name: value for name, value in inputs.items() if value is not None}


def save_model(
    path: Path, op: Op[..., Any], samples: Sequence[Sample], dtype: torch.dtype | None = None
) -> list[Tensor]:
    """Writes a model that makes every sample's call, its results of `dtype`; returns what it takes."""
    made = [node(op, sample, f"s{index}") for index, sample in enumerate(samples)]
    given = {name: value for _, inputs in made for name, value in inputs.items()}
    elements = element_types()
    dtype = dtype or next(iter(given.values())).dtype
    graph = helper.make_graph(
        [node for node, _ in made],
        op.name,
        [helper.make_tensor_value_info(name, elements[value.dtype], value.shape) for name, value in given.items()],
        [helper.make_tensor_value_info(name, elements[dtype], None) for node, _ in made for name in node.output],
    )
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return list(given.values())
