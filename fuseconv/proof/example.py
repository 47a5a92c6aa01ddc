"""Examples of rules: programs written as SSA lines, with the dtypes and shapes of inputs and parameters.

x: f32[n, 8]                 an input; n is a symbolic size
w: parameter f32[4, 8]       a parameter of the model
h = aten.linear.default(x, w)
y = aten.relu.default(h)
return y
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.fx import Graph, GraphModule, Node

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import DTYPES
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.matching.graph import find_op, why_no_op
from fuseconv.matching.replacement import resolve
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule_text import Call, RuleTextError, parse_line

MAX_SIZE = 64
"""The upper bound of every symbolic size."""

_SIZES = (3, 5, 7, 11, 13)
"""The values of the symbolic sizes of an example. They are distinct, and examples do not use them as static sizes."""

_TENSOR = re.compile(r"^(?P<name>[A-Za-z_]\w*): (?P<parameter>parameter )?(?P<dtype>\w+)\[(?P<dims>[\w, ]*)\]$")
_ASSERTION = "aten._assert_tensor_metadata.default"
_GRAMMAR = "write `x: f32[n, 8]`, `w: parameter f32[4, 8]`, `y = aten.relu.default(x)` or `return y`"


@dataclass(frozen=True)
class Text:
    """A program parsed from SSA lines.

    Attributes:
        inputs: the inputs by name.
        parameters: the parameters by name.
        lines: the op calls in order, as tuples of the target names, whether they unpack several results, and the call.
        returned: the names of the returned values.
    """

    inputs: Mapping[str, TensorSpec]
    parameters: Mapping[str, TensorSpec]
    lines: Sequence[tuple[tuple[str, ...], bool, Call]]
    returned: tuple[str, ...]


def example_program(lines: Sequence[str]) -> Program:
    """Captures a program written as text, with random inputs and parameters.

    Raises:
        RuleTextError: a line does not follow the grammar, an op is unknown, or a name is not bound.
    """
    text = parse_example(lines)
    sizes = example_sizes(text)
    draw = torch.Generator().manual_seed(0)
    module = GraphModule(_parameters(text, sizes, draw), graph_of(text))
    examples = tuple(_random(spec, sizes, draw) for spec in text.inputs.values())
    dims = {name: torch.export.Dim(name, min=1, max=MAX_SIZE) for name in sizes}
    shapes = {
        name: {axis: dims[size.name] for axis, size in enumerate(spec.shape) if isinstance(size, Dim)}
        for name, spec in text.inputs.items()
    }
    exported = torch.export.export(module, examples, dynamic_shapes=shapes)
    if not any(_ASSERTION in line for line in lines):
        _without_assertions(exported)
    return Program(exported, Contract(tuple(text.inputs.values()), text.returned), examples)


def example_sizes(text: Text) -> dict[str, int]:
    """Returns a mapping from the name of each symbolic size of an example to its value."""
    sizes: dict[str, int] = {}
    for spec in (*text.inputs.values(), *text.parameters.values()):
        for dim in spec.dims():
            sizes.setdefault(dim.name, _SIZES[len(sizes) % len(_SIZES)])
    return sizes


def _without_assertions(exported: torch.export.ExportedProgram) -> None:
    """Removes the assertions that torch.export adds at dtype conversions and that the text does not contain."""
    for node in list(exported.graph.nodes):
        if str(node.target) == _ASSERTION:
            exported.graph.erase_node(node)
    exported.graph_module.recompile()


def parse_example(lines: Sequence[str]) -> Text:
    """Parses a program written as text.

    Raises:
        RuleTextError: a line does not follow the grammar.
    """
    inputs: dict[str, TensorSpec] = {}
    parameters: dict[str, TensorSpec] = {}
    ops = []
    for line in lines[:-1]:
        if match := _TENSOR.match(line):
            (parameters if match["parameter"] else inputs)[match["name"]] = _spec(match)
            continue
        parsed = parse_line(line)
        if not isinstance(parsed.value, Call):
            raise RuleTextError(f"`{line}` calls no op", 0, _GRAMMAR)
        ops.append((parsed.targets, parsed.unpacks, parsed.value))
    if not lines[-1].startswith("return "):
        raise RuleTextError("the last line is not `return NAMES`", 0, _GRAMMAR)
    returned = tuple(name.strip() for name in lines[-1].removeprefix("return ").split(","))
    return Text(inputs, parameters, ops, returned)


def _spec(match: re.Match[str]) -> TensorSpec:
    if match["dtype"] not in DTYPES:
        raise RuleTextError(f"unknown dtype {match['dtype']}", match.start("dtype"), f"use one of {', '.join(DTYPES)}")
    words = [word.strip() for word in match["dims"].split(",")] if match["dims"] else []
    shape = tuple(int(word) if word.isdecimal() else Dim(word, 1, MAX_SIZE) for word in words)
    return TensorSpec(match["name"], match["dtype"], shape)


def _random(spec: TensorSpec, sizes: Mapping[str, int], draw: torch.Generator) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, DTYPES[spec.dtype].removeprefix("torch."))
    shape = spec.sizes(sizes)
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype == torch.bool else 9, shape, generator=draw).to(dtype)


def _parameters(text: Text, sizes: Mapping[str, int], draw: torch.Generator) -> torch.nn.Module:
    module = torch.nn.Module()
    for name, spec in text.parameters.items():
        tensor = _random(spec, sizes, draw)
        module.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return module.eval()


class _NoConstants:
    """An implementation of `Constants` for a program that is only being parsed and has no constants."""

    def constant(self, node: object) -> object:
        """Returns None."""
        del node
        return None

    def is_state(self, node: object) -> bool:
        """Returns False."""
        return self.constant(node) is not None

    def is_constant(self, node: object) -> bool:
        """Returns False."""
        return self.constant(node) is not None

    def formula(self, node: object) -> object:
        """Returns None."""
        return self.constant(node)

    def leaves_some(self, node: object) -> bool:
        """Returns False."""
        return self.constant(node) is not None


def graph_of(text: Text) -> Graph:
    """Builds the graph of a parsed program: one placeholder per input and one attribute per parameter.

    Raises:
        RuleTextError: an op is unknown, or a name is not bound.
    """
    graph = Graph()
    values: dict[str, Node] = {name: graph.placeholder(name) for name in text.inputs}
    values.update({name: graph.get_attr(name) for name in text.parameters})
    nothing = _NoConstants()
    try:
        for targets, unpacks, call in text.lines:
            op = find_op(call.op)
            if op is None:
                raise RuleTextError(why_no_op(call.op), 0, "use an op that torch.ops has and docs/trust.md permits")
            args = tuple(resolve(term, values, nothing) for term in call.args)
            node = graph.call_function(op, args, {name: resolve(term, values, nothing) for name, term in call.kwargs})
            for position, name in enumerate(targets):
                values[name] = graph.call_function(operator.getitem, (node, position)) if unpacks else node
        graph.output(tuple(values[name] for name in text.returned))
    except KeyError as missing:
        raise RuleTextError(f"{missing} is not bound", 0, "bind every name before it is used") from None
    return graph
