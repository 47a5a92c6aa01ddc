"""Prints a captured graph as TorchScript source: one line per node, generated from the schemas of the ops."""

from __future__ import annotations

import keyword
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node, map_arg

from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import arguments
from fuseconv.program.captured import Program
from fuseconv.targets.artifact import negative_zero
from fuseconv.targets.in_place import in_place
from fuseconv.targets.unplanned_attention import without_plans


@dataclass(frozen=True)
class Script:
    """TorchScript source and the objects to which it refers.

    Attributes:
        source: the source of the method `forward`.
        tensors: the weights and constants by their attribute names in `source`. Tied weights occur once.
        overloads: the op overload that must compute each variable of `source`.
    """

    source: str
    tensors: Mapping[str, torch.Tensor]
    overloads: Mapping[str, torch._ops.OpOverload]


_INFIX: Mapping[Any, str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "and",
    operator.or_: "or",
}

_CALLS: Mapping[Any, str] = {
    operator.neg: "-({})",
    operator.getitem: "{}[{}]",
    torch.sym_float: "float({})",
    torch.sym_int: "int({})",
    torch.sym_max: "max({}, {})",
    torch.sym_min: "min({}, {})",
    torch.sym_not: "not ({})",
    torch.sym_ite: "({1} if {0} else {2})",
    math.floor: "math.floor({})",
    math.ceil: "math.ceil({})",
    math.trunc: "int({})",
    round: "round({})",
    torch.sym_sqrt: "math.sqrt({})",
}

_SIZES: Mapping[Any, str] = {
    torch.ops.aten.sym_size.int: "size",
    torch.ops.aten.sym_stride.int: "stride",
    torch.ops.aten.sym_numel.default: "numel",
    torch.ops.aten.sym_storage_offset.default: "storage_offset",
}

_ONE_AXIS: Mapping[Any, Any] = {
    torch.ops.aten.upsample_nearest1d.vec: torch.ops.aten.upsample_nearest1d.default,
    torch.ops.aten._upsample_nearest_exact1d.vec: torch.ops.aten._upsample_nearest_exact1d.default,
    torch.ops.aten.upsample_linear1d.vec: torch.ops.aten.upsample_linear1d.default,
}
"""Maps each 1D interpolation with scale factors to the overload that is called if an output size is given instead."""

_CHECKED_BY_THE_CONTRACT = (
    torch.ops.aten._assert_tensor_metadata.default,
    torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
)

_RETURNS_ITS_INPUT = (
    torch.ops.aten.alpha_dropout.default,
    torch.ops.aten.dropout.default,
    torch.ops.aten.feature_alpha_dropout.default,
    torch.ops.aten.feature_dropout.default,
)
"""The dropout ops. They are inactive in a captured program, where eager mode returns the input itself. Their schemas
say that they return a copy, so TorchScript would remove in-place writes to the result as dead code."""

_HINTS = ("implicit",)
"""The names of arguments that are not printed: TorchScript removes an `expand` with `implicit=True` even if its result
is used."""

_RESERVED = {"self", "torch", "math", "float", "int", "max", "min", "round", "Tensor", "List", "Tuple", "Optional"}


def print_script(program: Program, spelled: frozenset[str] = frozenset()) -> Script:
    """Prints the graph of a program as TorchScript source.

    Args:
        program: the program to print.
        spelled: the names of variables for whose calls the arguments with default values are printed too, by keyword.

    Raises:
        UnsupportedError: a node cannot be expressed in TorchScript. The error names the node and its source line.
    """
    return _Printer(in_place(without_plans(program)), spelled).script()


class _Printer:
    """Prints one program and records the variable and attribute names in use."""

    def __init__(self, program: Program, spelled: frozenset[str]) -> None:
        self.program = program
        self.spelled = spelled
        self.names: dict[Node, str] = {}
        self.taken = set(_RESERVED)
        self.lines: list[str] = []
        self.overloads: dict[str, torch._ops.OpOverload] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.attributes: dict[Any, str] = {}
        self.results: dict[Any, list[str]] = {}

    def script(self) -> Script:
        exported, contract = self.program.exported, self.program.contract
        inputs = iter(contract.inputs)
        arguments: list[str] = []
        placeholders = exported.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, exported.graph_signature.input_specs, strict=True):
            if spec.kind is InputKind.USER_INPUT:
                arguments.append(self.name(node, next(inputs).name))
            elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
                self.names[node] = f"self.{self.attribute(str(spec.target))}"
            elif node.users:
                raise _unsupported(node, f"an input of kind {spec.kind.name}")
        for spec in exported.graph_signature.output_specs:
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise UnsupportedError(
                    f"the model cannot be written as TorchScript: it has an output of kind {spec.kind.name}",
                    where=str(spec.target),
                    fix="make the model return the values that it mutates",
                )
        if zero := negative_zero(self.program):
            raise UnsupportedError(
                f"TorchScript cannot express {zero}",
                where="the target torchscript",
                fix="leave the target torchscript out",
            )
        outputs = self.body(exported.graph_module)
        (results,) = exported.graph.output_node().args
        outputs = [self.output(node, text) for node, text in zip(results, outputs, strict=True)]
        header = f"def forward(self{''.join(f', {name}: Tensor' for name in arguments)}):"
        result = f"return ({''.join(f'{output}, ' for output in outputs)})"
        source = "\n    ".join([header, *self.lines, result]) + "\n"
        return Script(source, self.tensors, self.overloads)

    def name(self, node: Node, wanted: str) -> str:
        """Assigns a new variable name to `node` and returns it: `wanted`, with `_` appended until it is unused."""
        self.names[node] = self.fresh(wanted)
        return self.names[node]

    def fresh(self, wanted: str) -> str:
        name = wanted
        while name in self.taken or keyword.iskeyword(name):
            name += "_"
        self.taken.add(name)
        return name

    def attribute(self, target: str) -> str:
        """Returns the attribute name of a weight, which is the same for all names of a tied weight."""
        exported = self.program.exported
        tensor = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        identity = (tensor.data_ptr() or target, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if identity not in self.attributes:
            name = "".join(letter if letter.isalnum() else "_" for letter in target)
            name = f"_{name}" if name[0].isdigit() else name  # the first layer of a Sequential is "0.weight"
            while name in self.tensors:
                name += "_"
            self.attributes[identity] = name
            self.tensors[name] = tensor
        return self.attributes[identity]

    def output(self, node: Node, text: str) -> str:
        """Returns the expression of an output: `text`, or a clone of a constant if the output depends on no argument.

        The compiler evaluates an expression that depends on no argument only once. Without the clone, all calls would
        return the same tensor.
        """
        if (value := _constant(node)) is None:
            return text
        name = self.fresh(f"constant_{text}")
        self.tensors[name] = value.to(self.program.contract.device)
        return f"torch.ops.aten.clone(self.{name})"

    def body(self, module: GraphModule) -> list[str]:
        """Prints every node of a graph except the placeholders, and returns the expressions of its outputs."""
        for node in module.graph.nodes:
            if node.op == "call_function":
                self.call(node, module)
            elif node.op == "get_attr" and not isinstance(getattr(module, node.target), GraphModule):
                raise _unsupported(node, f"the attribute {node.target}")
            elif node.op not in ("placeholder", "get_attr", "output"):
                raise _unsupported(node, f"a node of kind {node.op}")
        (results,) = module.graph.output_node().args
        return [self.value(result, None) for result in results]  # type: ignore[union-attr]

    def call(self, node: Node, module: GraphModule) -> None:
        target: Any = node.target
        if target in _CHECKED_BY_THE_CONTRACT:
            return
        if target is torch.ops.aten._assert_scalar.default:
            self.lines.append(f"assert bool({self.value(node.args[0], None)}), {node.args[1]!r}")
        elif target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            self.region(node, module)
        elif target is operator.getitem and node.args[0] in self.results:
            self.names[node] = self.results[node.args[0]][node.args[1]]  # type: ignore[index]
        elif target in _RETURNS_ITS_INPUT:
            self.names[node] = self.value(node.args[0], None)
        elif isinstance(target, torch._ops.OpOverload):
            self.overload(node, target)
        else:
            expression = self.arithmetic(node)
            self.lines.append(f"{self.name(node, node.name)} = {expression}")

    def region(self, node: Node, module: GraphModule) -> None:
        """Prints the body of a no_grad region without the region, because a deployed model never computes gradients."""
        _, body, *operands = node.args
        inner: GraphModule = getattr(module, str(body.target))  # type: ignore[union-attr]
        for placeholder, operand in zip(inner.graph.find_nodes(op="placeholder"), operands, strict=True):
            self.names[placeholder] = self.value(operand, None)
        self.results[node] = self.body(inner)

    def overload(self, node: Node, target: torch._ops.OpOverload) -> None:
        """Prints a call of an op, with each argument in the type that the schema declares."""
        if target in _ONE_AXIS and arguments(node)["scale_factors"] is None:
            target = _ONE_AXIS[target]  # the overload that the compiler selects
        schema = target._schema
        is_spelled = not self.spelled.isdisjoint((node.name, f"{node.name}_0"))
        positional = zip(schema.arguments, node.args, strict=False)
        # Defaults are omitted, except strings: the padding string selects the overload of a convolution.
        words = {
            argument.name: argument.default_value
            for argument in schema.arguments[len(node.args) :]
            if argument.has_default_value() and (argument.type.kind() == "StringType" or is_spelled)
        }
        keyword = (
            (argument, (words | node.kwargs)[argument.name])
            for argument in schema.arguments
            if argument.name in words | node.kwargs
        )
        # The overloads of interpolations differ only in the names of their arguments.
        named = target._overloadname == "vec"
        given = [(argument, value, f"{argument.name}=" if named else "") for argument, value in positional]
        given += [(argument, value, f"{argument.name}=") for argument, value in keyword]
        given = [one for one in given if one[0].name not in _HINTS]
        texts = ", ".join(prefix + self.value(value, argument.type) for argument, value, prefix in given)
        call = f"torch.ops.{schema.name.replace('::', '.')}({texts})"
        if target in _SIZES:
            call = f"torch.ops.aten.{_SIZES[target]}({texts})"
        if not schema.returns:
            self.lines.append(call)
            return
        # TorchScript converts a bool that is passed as a number to an int, which changes the dtype of the result.
        is_narrowed = any(
            isinstance(value, bool) and argument.type.kind() == "NumberType" for argument, value, _ in given
        )
        # If a number is passed for a tensor argument, the compiler correctly selects the overload for scalars.
        is_scalar = any(argument.type.kind() == "TensorType" and not _is_tensor(value) for argument, value, _ in given)
        if len(schema.returns) > 1:
            self.results[node] = names = [self.fresh(f"{node.name}_{index}") for index in range(len(schema.returns))]
            self.lines.append(f"{', '.join(names)} = {call}")
            self.overloads[names[0]] = target
            return
        # The compiler gives the value of a tensor a type that is neither int nor float, which few ops take.
        number = _number(node.meta["val"]) if schema.returns[0].type.kind() == "NumberType" else ""
        name = self.name(node, node.name)
        if is_narrowed:
            call = f"torch.ops.aten.to({call}, {node.meta['val'].dtype})"
        self.lines.append(f"{name} = {number}({call})" if number else f"{name} = {call}")
        if not (is_narrowed or is_scalar or number or target in _SIZES):
            self.overloads[name] = target

    def arithmetic(self, node: Node) -> str:
        """Returns the expression of a Python operator, such as arithmetic on sizes."""
        if node.target not in _INFIX and node.target not in _CALLS:
            raise _unsupported(node, f"{getattr(node.target, '__name__', node.target)}")
        operands = [self.value(argument, None) for argument in node.args]
        if node.target in _CALLS:
            return _CALLS[node.target].format(*operands)
        text = f"({operands[0]} {_INFIX[node.target]} {operands[1]})"
        is_integer = isinstance(node.meta.get("val"), int | torch.SymInt)
        return f"int({text})" if is_integer and node.target is operator.pow else text

    def value(self, value: Any, type_: Any) -> str:
        """Returns the source text of an argument.

        Args:
            value: a node, a number, a string, None, or a list of these.
            type_: the JIT type that the op's schema declares. None if no type is declared.
        """
        kind = type_.kind() if type_ is not None else ""
        if kind == "OptionalType":
            return self.value(value, type_.getElementType())
        if isinstance(value, Node):
            is_integer = kind == "FloatType" and isinstance(value.meta.get("val"), int | torch.SymInt)
            return f"float({self.names[value]})" if is_integer else self.names[value]
        if isinstance(value, list | tuple):
            return self.sequence(value, type_)
        if isinstance(value, float) or (kind == "FloatType" and isinstance(value, int)):
            return repr(float(value)) if math.isfinite(value) else f'float("{float(value)}")'
        if isinstance(value, torch.device):
            return f'torch.device("{self.program.contract.device}")'
        return repr(value)  # None, bool, int, complex, str; torch's dtypes, layouts and memory formats print as written

    def sequence(self, values: list[Any] | tuple[Any, ...], type_: Any) -> str:
        element = type_.getElementType() if type_ is not None and type_.kind() == "ListType" else None
        text = f"[{', '.join(self.value(value, element) for value in values)}]"
        if element is None or (values and element.kind() != "OptionalType"):
            return text
        return f"torch.jit.annotate({type_.annotation_str}, {text})"


def _constant(node: Node) -> torch.Tensor | None:
    """Returns the value of a node that depends on no input and no weight, or None for any other node."""
    nodes, queue = {node}, [node]
    while queue:
        near = queue.pop().all_input_nodes
        queue.extend(operand for operand in near if operand not in nodes)
        nodes.update(near)
    if any(one.op != "call_function" or isinstance(one.target, torch._ops.HigherOrderOperator) for one in nodes):
        return None
    values: dict[Node, Any] = {}
    for one in sorted(nodes):
        args, kwargs = map_arg((one.args, dict(one.kwargs)), values.__getitem__)
        values[one] = one.target(*args, **kwargs)  # type: ignore[operator]  # a function: see above
    value: torch.Tensor = values[node]
    return value.clone(memory_format=torch.contiguous_format)


def _number(value: Any) -> str:
    """Returns the name of the Python type of a number, which may be symbolic."""
    kinds = {"bool": bool | torch.SymBool, "int": int | torch.SymInt, "float": float | torch.SymFloat}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), "complex")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _unsupported(node: Node, what: str) -> UnsupportedError:
    lines = [line.strip() for line in (node.stack_trace or "").splitlines() if line.strip()]
    return UnsupportedError(
        f"TorchScript cannot express {what}",
        where=f"node {node.name}" + "".join(f", {line}" for line in lines[-2:]),
        fix="leave the target torchscript out",
    )
