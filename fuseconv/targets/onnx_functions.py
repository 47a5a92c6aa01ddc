"""Writes fuseconv ops to ONNX: each op becomes one node in the domain com.fuseconv, with a function body.

ONNX Runtime runs the function body unless fuseconv's kernels are loaded. The body is exported from the op's reference
in plain PyTorch, once for each distinct call in the program. Calls are distinct if their attributes (such as the
activation), ranks, broadcasting or dtypes differ.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir
import onnxscript
import torch
from onnx.defs import OpSchema
from torch.fx import Node

from fuseconv.ops import OPS, Op
from fuseconv.targets.onnx_long_sums import SHORT, SHORT_IN_ROWS
from fuseconv.targets.onnx_sizes import largest

DOMAIN = "com.fuseconv"
VERSION = 1

# Maps the schema type of an argument to its Python type and ONNX attribute type. A float is written as a tensor with
# one float64, because ONNX's FLOAT attribute is float32.
_ATTRIBUTES: Mapping[str, tuple[Any, Any]] = {
    "str": (str, OpSchema.AttrType.STRING),
    "float": (float, OpSchema.AttrType.TENSOR),
    "bool": (int, OpSchema.AttrType.INT),
    "int": (int, OpSchema.AttrType.INT),
    "List[int]": (Sequence[int], OpSchema.AttrType.INTS),
}
_DTYPES = ["tensor(float)", "tensor(double)", "tensor(float16)", "tensor(bfloat16)"]
_SIZES = (6, 10, 14, 22, 26, 34, 38, 46, 58, 62)
"""The sizes of example tensors. They are distinct, and even because a gated layer halves the size of its product."""


@dataclass(frozen=True)
class Call:
    """The properties of a call on which its function body depends.

    Attributes:
        op: the fuseconv op that is called.
        tensors: for each tensor argument, its dtype and one number per axis, or None if the argument is omitted. Sizes
            are numbered from 1 in order of appearance, and equal sizes get the same number. A size of 1, which
            broadcasts, gets the number 0.
        bounds: for each number from 1, the least of `onnx_long_sums.SHORT`, `SHORT_IN_ROWS` and None (no bound) that
            the size never exceeds.
        attributes: the name and value of each other argument.
    """

    op: Op[..., Any]
    tensors: tuple[tuple[torch.dtype, tuple[int, ...]] | None, ...]
    bounds: tuple[int | None, ...]
    attributes: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(node: Node, op: Op[..., Any]) -> Call:
        """Returns the properties of the call of `op` in a graph node."""
        given = arguments_of(op, node.args, node.kwargs)
        numbers: dict[Any, int] = {}
        bounds: list[int | None] = []

        def number(size: int | torch.SymInt) -> int:
            if str(size) == "1":
                return 0
            if str(size) not in numbers:
                numbers[str(size)] = len(numbers) + 1
                bounds.append(next((bound for bound in (SHORT, SHORT_IN_ROWS) if largest(size) <= bound), None))
            return numbers[str(size)]

        values = (None if given[name] is None else given[name].meta["val"] for name in tensor_names(op))
        return Call(
            op,
            tuple(None if value is None else (value.dtype, tuple(map(number, value.shape))) for value in values),
            tuple(bounds),
            tuple(
                (name, tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else value)
                for name, value in given.items()
                if name not in tensor_names(op)
            ),
        )

    def examples(self) -> list[torch.Tensor]:
        """Returns an example tensor of zeros for each tensor argument that is not omitted."""
        sizes = [1, *_SIZES]
        groups = dict(self.attributes).get("groups", 1)
        if groups > 1 and self.tensors[0] is not None:  # the number of groups divides the channels
            multiples = (groups * count for count in itertools.count(2))
            sizes[self.tensors[0][1][1]] = next(size for size in multiples if size not in sizes)
        return [
            torch.zeros([sizes[number] for number in numbers], dtype=dtype)
            for dtype, numbers in filter(None, self.tensors)
        ]

    def dynamic_dims(self) -> list[dict[int, Any]]:
        """Returns the dynamic dims of each example: every axis whose size is not 1, so that no size is a constant."""
        return [
            {axis: _dim(self.bounds[number - 1], example.shape[axis]) for axis, number in enumerate(numbers) if number}
            for (_, numbers), example in zip(filter(None, self.tensors), self.examples(), strict=True)
        ]

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Calls the op's reference and returns its results as a tuple.

        Args:
            tensors: the tensor arguments that are not omitted, in order.
        """
        rest = iter(tensors)
        given = {
            name: None if kind is None else next(rest)
            for name, kind in zip(tensor_names(self.op), self.tensors, strict=True)
        }
        results = self.op.reference(**given, **dict(self.attributes))
        return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def arguments_of(op: Op[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of a call by name, including defaults."""
    schema = op.overload._schema.arguments
    defaults = {argument.name: argument.default_value for argument in schema}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}


def tensor_names(op: Op[..., Any]) -> list[str]:
    """Returns the names of the op's tensor arguments in order, which are also the inputs of its ONNX node."""
    return [argument.name for argument in op.overload._schema.arguments if str(argument.type) not in _ATTRIBUTES]


def op_type(op: Op[..., Any]) -> str:
    """Returns the ONNX name of an op, such as LinearAct for linear_act."""
    return op.name.title().replace("_", "")


def translations() -> dict[Any, Callable[..., Any]]:
    """Returns a function for each fuseconv op that has an ONNX node, which torch.onnx.export calls to emit the node."""
    return {op.overload: _translation(op) for op in OPS if op.onnx_node}


def _translation(op: Op[..., Any]) -> Callable[..., Any]:
    names = tensor_names(op)
    opset = onnxscript.values.Opset(DOMAIN, VERSION)
    emit = onnxscript.values.Op(opset, op_type(op), _schema(op))

    def translate(*args: Any, **kwargs: Any) -> Any:
        given = arguments_of(op, args, kwargs)
        return emit(*(given[name] for name in names), **attributes_of(op, given))

    # The exporter reads the signature to distinguish tensors from attributes.
    attribute_types = {
        argument.name: _ATTRIBUTES[str(argument.type)][0]
        for argument in op.overload._schema.arguments
        if argument.name not in names
    }
    translate.__name__ = op_type(op)
    translate.__annotations__ = attribute_types
    signature = inspect.Signature(
        [
            inspect.Parameter(
                argument.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
                annotation=attribute_types.get(argument.name, inspect.Parameter.empty),
            )
            for argument in op.overload._schema.arguments
        ]
    )
    setattr(translate, "__signature__", signature)  # noqa: B010  # functions declare no such attribute
    return translate


def attributes_of(op: Op[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes of a node that calls `op` with these arguments."""
    write: Mapping[str, Callable[[Any], Any]] = {
        "float": lambda value: ir.tensor(float(value), dtype=ir.DataType.DOUBLE),
        "bool": int,
        "List[int]": list,
    }
    kinds = {argument.name: str(argument.type) for argument in op.overload._schema.arguments}
    return {
        name: write.get(kind, lambda value: value)(given[name]) for name, kind in kinds.items() if kind in _ATTRIBUTES
    }


def _schema(op: Op[..., Any]) -> OpSchema:
    schema = op.overload._schema
    names = tensor_names(op)
    optional = {True: OpSchema.FormalParameterOption.Optional, False: OpSchema.FormalParameterOption.Single}
    return OpSchema(
        op_type(op),
        DOMAIN,
        VERSION,
        doc=op.reference.__doc__ or "",
        inputs=[
            OpSchema.FormalParameter(argument.name, "T", param_option=optional[argument.type.kind() == "OptionalType"])
            for argument in schema.arguments
            if argument.name in names
        ],
        outputs=[OpSchema.FormalParameter(f"output_{index}", "T") for index in range(len(schema.returns))],
        type_constraints=[("T", _DTYPES, "the floating dtypes that the kernels serve")],
        attributes=[
            OpSchema.Attribute(argument.name, _ATTRIBUTES[str(argument.type)][1], required=True)
            for argument in schema.arguments
            if argument.name not in names
        ],
    )


class _References(torch.nn.Module):
    """A module that runs the references of all calls, so that one export produces all function bodies."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, *groups: list[torch.Tensor]) -> list[tuple[torch.Tensor, ...]]:
        return [call.run(group) for call, group in zip(self.calls, groups, strict=True)]


_BODIES: dict[tuple[Call, Callable[..., ir.Model]], bytes] = {}
"""The bodies that this process has written, as serialized functions."""


def bodies(calls: Sequence[Call], export: Callable[..., ir.Model]) -> list[ir.Function]:
    """Returns one ONNX function per call; the function's overload name is the index of the call.

    All references that were not exported before are exported together, as one program. A body does not depend on the
    calls that it was exported with: it contains only names that are counted in the body itself, and no metadata.

    Args:
        calls: the distinct calls, each of which gets one function.
        export: the ONNX exporter: `(program) -> model`. Bodies are kept per exporter.
    """
    missing = [call for call in calls if (call, export) not in _BODIES]
    for call, function in zip(missing, _exported(missing, export) if missing else (), strict=True):
        _BODIES[call, export] = ir.to_proto(function).SerializeToString()
    return [_read(_BODIES[call, export], str(overload)) for overload, call in enumerate(calls)]


def _read(body: bytes, overload: str) -> ir.Function:
    proto = onnx.FunctionProto.FromString(body)
    proto.overload = overload
    return ir.from_proto(proto)


def _exported(calls: Sequence[Call], export: Callable[..., ir.Model]) -> list[ir.Function]:
    groups = tuple(call.examples() for call in calls)
    shapes = tuple(call.dynamic_dims() for call in calls)
    program = torch.export.export(_References(calls), groups, dynamic_shapes={"groups": shapes})
    graph = export(program).graph
    inputs, outputs = iter(graph.inputs), iter(graph.outputs)
    functions = []
    for call, group in zip(calls, groups, strict=True):
        own_inputs = [next(inputs) for _ in group]
        own_outputs = [next(outputs) for _ in call.op.overload._schema.returns]
        functions.append(_function(call, ir.convenience.extract(graph, own_inputs, own_outputs)))
    return functions


def _dim(bound: int | None, example: int) -> Any:
    """Returns a dynamic dim with an upper bound, which is at least the size of the example."""
    dynamic = torch.export.Dim.DYNAMIC
    return dynamic if bound is None else dynamic(max=max(bound, example))


def _function(call: Call, graph: ir.Graph) -> ir.Function:
    given = iter(list(graph.inputs))
    formals = [ir.Value() if kind is None else next(given) for kind in call.tensors]
    for formal, name in zip(formals, tensor_names(call.op), strict=True):
        formal.name = name
    graph.inputs.clear()
    graph.inputs.extend(formals)
    _write_constants_as_nodes(graph)
    graph.metadata_props.clear()
    for at, node in enumerate(graph.all_nodes()):
        node.name = f"{node.op_type}_{at}"
        node.metadata_props.clear()
        for position, value in enumerate(node.outputs):
            value.name = f"{node.name}_{position}"
            value.metadata_props.clear()
            value.shape = None  # the shape has the sizes of the examples
    attributes = [ir.Attr(name, ir.AttributeType.UNDEFINED, None) for name, _ in call.attributes]
    return ir.Function(DOMAIN, op_type(call.op), graph=graph, attributes=attributes)


def _write_constants_as_nodes(graph: ir.Graph) -> None:
    """Converts initializers to Constant nodes, because functions have no initializers."""
    for name, value in list(graph.initializers.items()):
        assert value.const_value is not None
        constant = ir.node("Constant", [], attributes={"value": value.const_value})
        constant.outputs[0].name = name
        del graph.initializers[name]
        ir.convenience.replace_all_uses_with(value, constant.outputs[0])
        graph.insert_before(graph[0], constant)
