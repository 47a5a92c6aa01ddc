"""Converts a graph of torch.compile to a program of ATen ops, to which rules apply, and converts such a program back.

Dynamo calls a backend with a graph of torch functions, whose parameters and buffers are inputs. The graph is traced
with fake tensors above autograd, so that it keeps aten.linear, gelu and layer_norm, and its writes in place. Symbolic
sizes are those of Dynamo: conditions on them become guards of the compiled function, or must hold for all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._export.passes.replace_autocast_with_hop_pass import replace_autocast_with_hop_pass
from torch._export.passes.replace_set_grad_with_hop_pass import replace_set_grad_with_hop_pass
from torch._export.verifier import TrainingIRVerifier
from torch._guards import TracingContext
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fuseconv.contract.spec import Contract
from fuseconv.fusing.left_alone import MODES, check_calls, check_inputs, check_memory, check_sizes
from fuseconv.graph.aliases import has_effect
from fuseconv.graph.nodes import is_call, written
from fuseconv.graph.op_aliases import name_ops_once
from fuseconv.program.captured import Program

_KEPT_META = ("stack_trace", "nn_module_stack", "source_fn_stack", "custom")


def captured(module: GraphModule, inputs: Sequence[Any]) -> Program:
    """Traces a graph of Dynamo as a program.

    Args:
        module: the graph. It is not changed.
        inputs: its inputs on this call, in the order of the placeholders: tensors and symbolic numbers.

    Returns:
        The program. Its placeholders have the names of the graph's placeholders; those of parameters, buffers and
        literals come first.

    Raises:
        LeftAloneError: the graph or an input is of a kind that such a program does not keep.
    """
    check_inputs(module, inputs)
    check_calls(module)
    context = TracingContext.get()
    assert context.fake_mode is not None
    assert context.fake_mode.shape_env is not None
    mode = FakeTensorMode(shape_env=context.fake_mode.shape_env)
    fakes = [_fake(value, mode, context) for value in inputs]
    traced = _traced(module, fakes, mode)
    # The cache is shared by all modes of the process, and matching runs ops under assumptions about sizes.
    mode.cache_enabled = False
    traced = _with_regions(traced)
    check_sizes(traced, fakes, context.fake_mode.shape_env)
    if any(is_call(node) and any(written(node)) for node in traced.graph.nodes):
        check_memory(module, inputs)
    return _program(traced, module, inputs, context, dict(context.fake_mode.shape_env.var_to_range))


def runnable(program: Program, like: GraphModule) -> GraphModule:
    """Returns a program as a module with the placeholders of a graph of Dynamo, in their order.

    Args:
        program: the program that `captured` made of the graph, or such a program after a rewrite.
        like: the graph of Dynamo.
    """
    exported = program.exported
    graph, copies = Graph(), dict[Node, Node]()
    given: dict[str, Node] = {}
    for node in like.graph.find_nodes(op="placeholder"):
        given[node.name] = graph.node_copy(node)
        given[node.name].name = node.name
        given[node.name]._dynamo_source = node._dynamo_source
    constants = {spec.arg.name: str(spec.target) for spec in exported.graph_signature.input_specs if spec.target}
    attributes: dict[str, Any] = {
        str(node.target): exported.graph_module.get_submodule(str(node.target))
        for node in exported.graph.find_nodes(op="get_attr")
    }
    for node in exported.graph.nodes:
        if node.op == "placeholder" and node.name in given:
            copies[node] = given[node.name]
        elif node.op == "placeholder":
            name = f"_fuseconv_{node.name}"
            attributes[name] = exported.constants[constants[node.name]]
            copies[node] = graph.get_attr(name)
        elif node.op == "output":
            graph.output(torch.fx.map_arg(node.args[0], copies.__getitem__))
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            # Fake values are left out: those of this trace belong to another mode than the next trace's.
            copies[node].meta = {key: node.meta[key] for key in _KEPT_META if key in node.meta}
    result = GraphModule(attributes, graph, like.__class__.__name__)
    result.meta = dict(like.meta)
    # AOTAutograd makes the literals inputs of the compiled function, and looks up where Dynamo found each of them.
    sources = {name: ConstantSource(name) for name, _ in result.named_buffers()}
    result._param_name_to_source = sources  # type: ignore[assignment]
    return result


class _Modal(Interpreter):
    """An interpreter that enters and leaves autocast. While torch traces, its own functions only record that."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)
        self.entered: list[torch.autocast] = []

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the function of a node."""
        if target is torch.amp.autocast_mode._enter_autocast:
            self.entered.append(torch.autocast(*args))
            return self.entered[-1].__enter__()  # type: ignore[no-untyped-call]
        if target is torch.amp.autocast_mode._exit_autocast:
            return self.entered.pop().__exit__(None, None, None)
        return super().call_function(target, args, kwargs)


def _traced(module: GraphModule, fakes: Sequence[Any], mode: FakeTensorMode) -> GraphModule:
    """Traces a graph on fake inputs. The graph is interpreted, so that each node gets the source line of the model.

    An error within a region leaves the modes of this thread as they were.
    """
    interpreter = _Modal(module)
    try:
        with (
            torch.set_grad_enabled(torch.is_grad_enabled()),
            mode,
            enable_python_dispatcher(),
            fx_traceback.preserve_node_meta(),
        ):
            return make_fx(interpreter.run, pre_dispatch=True)(*fakes)
    finally:
        for entered in reversed(interpreter.entered):
            entered.__exit__(None, None, None)


def _with_regions(traced: GraphModule) -> GraphModule:
    """Returns a trace in which the ops between two changes of a mode are one node, which calls a subgraph.

    torch drops a region whose values nobody uses, even if it writes in place. So its writes are returned meanwhile.
    """
    if not any(node.target in MODES for node in traced.graph.nodes):
        return traced
    output = traced.graph.output_node()
    returned: Any = output.args[0]
    unused = [node for node in traced.graph.nodes if is_call(node) and not node.users and has_effect(node, traced)]
    output.args = ((*returned, *unused),)
    traced, _ = replace_set_grad_with_hop_pass(traced, None)
    traced, _ = replace_autocast_with_hop_pass(traced, None)
    output = traced.graph.output_node()
    kept: Any = output.args[0]
    output.args = (tuple(kept[: len(returned)]),)
    return traced


def _fake(value: Any, mode: FakeTensorMode, context: TracingContext) -> Any:
    if not isinstance(value, Tensor):
        return value
    symbols = _symbols(value, context)
    source = None if symbols is None else symbols.tensor_source
    return mode.from_tensor(
        value, symbolic_context=symbols, source=source, static_shapes=symbols is None or None, trace=False
    )


def _symbols(value: Any, context: TracingContext) -> Any:
    """Returns Dynamo's record of an input: where it comes from, and which of its sizes are symbolic. None if none."""
    known: Any = context.tensor_to_context
    return known.get(value) if isinstance(value, Tensor) else None


def _program(
    traced: GraphModule,
    module: GraphModule,
    inputs: Sequence[Any],
    context: TracingContext,
    ranges: dict[Any, Any],
) -> Program:
    """Returns a traced graph as a program: states first, then the inputs."""
    names = [node.name for node in module.graph.find_nodes(op="placeholder")]
    nodes = traced.graph.find_nodes(op="placeholder")
    kinds = [_kind(value, context) for value in inputs]
    literals = _literals(traced)
    graph, copies = Graph(), dict[Node, Node]()
    specs, state, constants = [], dict[str, Any](), dict[str, Any]()

    def place(node: Node, name: str, kind: InputKind) -> None:
        copies[node] = graph.placeholder(name)
        copies[node].name = name
        copies[node].meta = {"val": node.meta["val"]}
        target = None if kind is InputKind.USER_INPUT else name
        persistent = True if kind is InputKind.BUFFER else None
        specs.append(InputSpec(kind, _argument(copies[node]), target, persistent))

    order = sorted(range(len(names)), key=lambda at: kinds[at] is InputKind.USER_INPUT)
    first = [at for at in order if kinds[at] is not InputKind.USER_INPUT]
    for at in first:
        place(nodes[at], names[at], kinds[at])
        state[names[at]] = inputs[at]
    for node, tensor in literals.items():
        place(node, f"literal_{node.name.strip('_')}", InputKind.CONSTANT_TENSOR)
        constants[copies[node].name] = tensor
    users = order[len(first) :]
    for at in users:
        place(nodes[at], names[at], InputKind.USER_INPUT)
    returned: Any = None
    for node in traced.graph.nodes:
        if node.op == "output":
            returned = tuple(torch.fx.map_arg(node.args[0], copies.__getitem__))
        elif node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(returned).meta["val"] = tuple(_value(one) for one in returned)
    examples = tuple(_example(inputs[at]) for at in users)
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, _argument(one), None) for one in returned]
    structure = ModuleCallSignature([], [], pytree.tree_structure((examples, {})), pytree.tree_structure(returned))
    exported = ExportedProgram(
        root=traced,
        graph=graph,
        graph_signature=ExportGraphSignature(specs, outputs),
        state_dict=state,
        range_constraints=ranges,
        module_call_graph=[ModuleCallEntry("", structure)],
        example_inputs=(examples, {}),
        constants=constants,
        verifiers=[TrainingIRVerifier],
    )
    name_ops_once(exported)
    devices = {value.device.type for value in inputs if isinstance(value, Tensor) and value.dim()}
    return Program(exported, Contract((), (), "cuda" if "cuda" in devices else "cpu"), (), trainable=True)


def _literals(traced: GraphModule) -> dict[Node, Tensor]:
    """Returns the nodes that read a tensor which the traced function created from numbers, with the tensors."""
    found = {node: getattr(traced, str(node.target)) for node in traced.graph.find_nodes(op="get_attr")}
    return {node: value for node, value in found.items() if isinstance(value, Tensor)}


def _kind(value: Any, context: TracingContext) -> InputKind:
    if isinstance(value, nn.Parameter):
        return InputKind.PARAMETER
    symbols = _symbols(value, context)
    source = None if symbols is None else symbols.tensor_source
    held = source is not None and source.guard_source.is_unspecialized_nn_module()
    return InputKind.BUFFER if held else InputKind.USER_INPUT


def _value(returned: Any) -> Any:
    return returned.meta.get("val") if isinstance(returned, Node) else returned


def _argument(returned: Any) -> Any:
    value = _value(returned)
    if not isinstance(returned, Node):
        return ConstantArgument("", returned)
    if isinstance(value, torch.SymInt):
        return SymIntArgument(returned.name)
    if isinstance(value, torch.SymFloat):
        return SymFloatArgument(returned.name)
    return TensorArgument(returned.name)


def _example(value: Any) -> Any:
    """Returns the value of an input on this call."""
    return value.node.hint if isinstance(value, torch.SymInt | torch.SymFloat) else value


def values(program: Program, module: GraphModule) -> Iterator[Any]:
    """Yields the inputs of a captured program on this call, in the order of the graph of Dynamo."""
    exported = program.exported
    args, _ = exported.example_inputs or ((), {})
    users = dict(zip(exported.graph_signature.user_inputs, args, strict=True))
    for node in module.graph.find_nodes(op="placeholder"):
        yield exported.state_dict[node.name] if node.name in exported.state_dict else users[node.name]
