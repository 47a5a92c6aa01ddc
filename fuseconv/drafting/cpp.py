"""Writes the ops of a subgraph as C++ on PyTorch's stable ABI. The code calls the functions in a pack's `aten.h`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Node

from fuseconv.drafting.lines import targets_of
from fuseconv.drafting.subgraph import Subgraph
from fuseconv.drafting.values import Values
from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import arguments, op_name, source_line

_DTYPES = {
    torch.float64: "Double",
    torch.float32: "Float",
    torch.float16: "Half",
    torch.bfloat16: "BFloat16",
    torch.int64: "Long",
    torch.int32: "Int",
    torch.int16: "Short",
    torch.int8: "Char",
    torch.uint8: "Byte",
    torch.bool: "Bool",
}
"""The C++ names of dtypes."""

_LAYOUTS = {
    torch.contiguous_format: "Contiguous",
    torch.preserve_format: "Preserve",
    torch.channels_last: "ChannelsLast",
    torch.channels_last_3d: "ChannelsLast3d",
}
"""The C++ names of memory formats."""

_TYPES = {
    "Tensor": "Tensor",
    "int": "std::int64_t",
    "SymInt": "std::int64_t",
    "float": "double",
    "SymFloat": "double",
    "bool": "bool",
    "str": "std::string",
    "ScalarType": "torch::headeronly::ScalarType",
    "MemoryFormat": "torch::headeronly::MemoryFormat",
}
"""The C++ type for each type of an op schema that the stable ABI can pass."""

_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge", "fmod", "remainder", "bitwise_and", "bitwise_or", "mul", "div")

_NUMBERS: Mapping[str, str] = {
    "aten.add.Tensor": "aten::add({self}, {other}, {alpha})",
    "aten.sub.Tensor": "aten::sub({self}, {other}, {alpha})",
    "aten.rsub.Scalar": "aten::sub({other}, {self}, {alpha})",
    "aten.pow.Tensor_Scalar": 'aten::call("aten::pow", "Tensor_Tensor", {self}, {exponent})',
    "aten.pow.Scalar": 'aten::call("aten::pow", "Tensor_Tensor", {self}, {exponent})',
    **{f"aten.{name}.Scalar": f'aten::call("aten::{name}", "Tensor", {{self}}, {{other}})' for name in _COMPARED},
    "aten.clamp.default": "aten::clamp({self}, {min}, {max})",
    "aten.clamp_min.default": 'aten::call("aten::clamp_min", "Tensor", {self}, {min})',
    "aten.clamp_max.default": 'aten::call("aten::clamp_max", "Tensor", {self}, {max})',
    "aten.hardtanh.default": "aten::clamp({self}, {min_val}, {max_val})",
    "aten.masked_fill.Scalar": 'aten::call("aten::masked_fill", "Tensor", {self}, {mask}, {value})',
    "aten.where.ScalarOther": "aten::where({condition}, {self}, {other})",
    "aten.where.ScalarSelf": "aten::where({condition}, {self}, {other})",
    "aten.where.Scalar": "aten::where({condition}, {self}, {other})",
    "aten.leaky_relu.default": "aten::leaky_relu({self}, {negative_slope})",
    "aten.softplus.default": "aten::softplus({self}, {threshold})",
    "aten.linalg_vector_norm.default": "aten::vector_norm({self}, {dim}, {keepdim})",
    "aten.addcmul.default": "aten::add({self}, aten::mul({tensor1}, {tensor2}), {value})",
    "aten.addcdiv.default": "aten::add({self}, aten::div({tensor1}, {tensor2}), {value})",
}
"""Equivalent C++ calls, by op, for ops that take a Scalar. The stable ABI cannot pass a Scalar."""

_ONLY: Mapping[str, Mapping[str, Any]] = {
    "aten.softplus.default": {"beta": 1},
    "aten.linalg_vector_norm.default": {"ord": 2, "dtype": None},
}
"""The argument values, by op, that are required for the call in `_NUMBERS` to be equivalent to the op."""

_FACTORS = frozenset({"alpha"})


def body_of(subgraph: Subgraph, values: Values) -> list[str]:
    """Returns the C++ statements of the kernel, one string per op of the subgraph, in execution order.

    Raises:
        UnsupportedError: the stable ABI cannot pass an argument of an op, and no equivalent call is known.
    """
    return [_statement(node, values) for node in subgraph.calls]


def signature_of(values: Values) -> str:
    """Returns the C++ parameter list of the kernel: first the tensors, then the sizes."""
    tensors = [f"const Tensor& {name}" for name in values.tensors]
    return ", ".join([*tensors, *(f"std::int64_t {name}" for name in values.sizes)])


def _statement(node: Node, values: Values) -> str:
    several = targets_of(node, values)
    if several is None:
        return f"const Tensor {values.name_of(node)} = {_call(node, values, 'aten::call')};"
    assert isinstance(node.target, torch._ops.OpOverload)
    if len(node.target._schema.returns) > 1:
        names = ", ".join(f"unused{at}" if name == "_" else name for at, name in enumerate(several))
        return f"const auto [{names}] = {_call(node, values, f'aten::several<{len(several)}>')};"
    # The op returns one list of tensors, and each name is bound to an item of this list.
    first = next(name for name in several if name != "_")
    parts = [f"const Tensor {name} = {first}_list[{at}];" for at, name in enumerate(several) if name != "_"]
    call = _call(node, values, "aten::call<std::vector<Tensor>>")
    return "\n".join([f"const std::vector<Tensor> {first}_list = {call};", *parts])


def _call(node: Node, values: Values, function: str) -> str:
    assert isinstance(node.target, torch._ops.OpOverload)
    schema, actual = node.target._schema, arguments(node)
    kinds = {one.name: str(one.real_type) for one in schema.arguments}
    if not any("number" in kind for kind in kinds.values()):
        words = [_word(node, values, name, kinds[name], value) for name, value in actual.items()]
        return f"{function}({', '.join([json.dumps(schema.name), json.dumps(schema.overload_name), *words])})"
    template = _NUMBERS.get(str(node.target))
    integral = str(node.target) in ("aten.add.Tensor", "aten.sub.Tensor") and not _is_floating(node)
    differs = any(actual[name] != value for name, value in _ONLY.get(str(node.target), {}).items())
    if template is None or integral or differs:
        what = f"PyTorch's stable ABI cannot call {node.target} with a number" + (" on integers" if integral else "")
        raise UnsupportedError(
            what, where=source_line(node) or node.name, fix="choose nodes without this op between them"
        )
    words_by_name = {name: _word(node, values, name, kinds[name], value) for name, value in actual.items()}
    return template.format(**words_by_name)


def _word(node: Node, values: Values, argument: str, kind: str, value: Any, at: int = 0) -> str:
    """Returns the C++ expression for an argument, with the type that the op's schema declares."""
    if kind.startswith("Optional["):
        inner = kind.removeprefix("Optional[").removesuffix("]")
        if value is None:
            return "std::nullopt"
        inner_type = "Tensor" if inner == "number" else _type(node, inner)
        return f"std::optional<{inner_type}>({_word(node, values, argument, inner, value)})"
    if kind.startswith("List["):
        inner = kind.removeprefix("List[").removesuffix("]")
        items = value if isinstance(value, list | tuple) else [value]
        words = [_word(node, values, argument, inner, item, place) for place, item in enumerate(items)]
        return f"{_type(node, kind)}{{{', '.join(words)}}}"
    if isinstance(value, Node):
        return values.name_of(value)
    if (size := values.static.get((node, argument, at))) is not None:
        return size.name
    if kind in ("Tensor", "number"):
        factor = argument in _FACTORS or (argument == "value" and op_name(node.target).startswith("aten.addc"))
        return _double(value) if factor else f"aten::number({_number(value)}, {_beside(node, values)})"
    return _literal(node, kind, value)


def _type(node: Node, kind: str) -> str:
    if kind.startswith("Optional["):
        return f"std::optional<{_type(node, kind.removeprefix('Optional[').removesuffix(']'))}>"
    if kind.startswith("List["):
        return f"std::vector<{_type(node, kind.removeprefix('List[').removesuffix(']'))}>"
    if kind not in _TYPES:
        what = f"PyTorch's stable ABI cannot pass the {kind} that {node.target} takes"
        raise UnsupportedError(
            what, where=source_line(node) or node.name, fix="choose nodes without this op between them"
        )
    return _TYPES[kind]


def _literal(node: Node, kind: str, value: Any) -> str:
    kind_in_cpp = _type(node, kind)
    if kind_in_cpp == "double":
        return _double(value)
    if isinstance(value, torch.dtype):
        return f"{kind_in_cpp}::{_DTYPES[value]}"
    if isinstance(value, torch.memory_format):
        return f"{kind_in_cpp}::{_LAYOUTS[value]}"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{kind_in_cpp}({json.dumps(value)})"


def _number(value: Any) -> str:
    return f"std::int64_t({value})" if isinstance(value, int) else _double(value)


def _double(value: float) -> str:
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(float(value))


def _beside(node: Node, values: Values) -> str:
    """Returns the name of the tensor operand that determines the dtype of a number in the same op call.

    This is the first floating-point tensor operand, or the first tensor operand if none is floating-point.
    """
    tensors = [one for one in node.all_input_nodes if isinstance(one.meta["val"], torch.Tensor)]
    floating = [one for one in tensors if one.meta["val"].is_floating_point()]
    return values.name_of((floating or tensors)[0])


def _is_floating(node: Node) -> bool:
    return bool(node.meta["val"].is_floating_point())
