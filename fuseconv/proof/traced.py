"""Traces a program written as text on fake tensors. The result is torch.export's graph, in a tenth of the time.

A rule is tested on hundreds of small programs. Each program contains only explicit op calls, so that only dtypes,
shapes and strides have to be computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, Node, map_arg
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
    free_unbacked_symbols,
)
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import torch_dtype
from fuseconv.contract.spec import TensorSpec
from fuseconv.graph.all_sizes import key_of, likeness, run_for_all_sizes
from fuseconv.graph.hazards import check_call
from fuseconv.graph.nodes import facts_of, is_call, is_getitem
from fuseconv.proof.example import MAX_SIZE, Text, example_sizes, graph_of


@dataclass(frozen=True)
class Traced:
    """A traced program, with the attributes of torch.export.ExportedProgram that a Workspace uses.

    Attributes:
        graph: the graph. It has one placeholder per parameter, then one per input. The `meta["val"]` of each node is a
            fake value.
        graph_module: an empty module.
        graph_signature: the signature: which placeholders are parameters, and which nodes are returned.
        state_dict: the parameters.
        constants: an empty mapping.
        range_constraints: maps each symbolic size to its range.
        inputs: the inputs, in order.
        results: a cache of the results of ops on fake values, for a Workspace. Programs with the same symbolic sizes
            share the cache.
    """

    graph: Graph
    graph_module: torch.nn.Module
    graph_signature: ExportGraphSignature
    state_dict: Mapping[str, torch.Tensor]
    constants: Mapping[str, torch.Tensor]
    range_constraints: Mapping[Any, Any]
    inputs: tuple[TensorSpec, ...]
    results: dict[Any, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Fakes:
    """A fake mode, and a cache of fake values: placeholders by tensor spec, and op results by call."""

    mode: FakeTensorMode
    leaves: dict[Any, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    results: dict[Any, Any] = field(default_factory=dict)


def trace(text: Text, parameters: Mapping[str, torch.Tensor]) -> Traced:
    """Runs a program on fake tensors and returns its graph.

    Args:
        text: the program to trace.
        parameters: maps the name of each parameter to its tensor.

    Raises:
        RuleTextError: an op is unknown, or a name is not bound.
        GuardError: an op branches on a condition that is not the same for all sizes.
        RuntimeError, TypeError, ValueError, IndexError: an op rejects its arguments.
    """
    sizes = example_sizes(text)
    written = graph_of(text)
    # A program that writes in place does not share its fake values with other programs.
    writes = any(is_call(node) and facts_of(node).writes for node in written.nodes)
    fakes = _numbers() if not sizes else _symbolic() if writes else _shared(tuple(sizes.items()))
    graph = Graph()
    nodes: dict[Node, Node] = {}
    reals: dict[Node, Any] = {}
    returned: list[Node] = []
    # Parameters come first, as in an exported program; graph_of writes them after the inputs.
    for node in sorted(written.nodes, key=lambda node: node.op != "get_attr"):
        if node.op == "output":
            returned = [nodes[operand] for operand in node.args[0]]
            continue
        if node.op in _LEAVES:
            name = str(node.target)
            nodes[node] = graph.placeholder(f"p_{name}" if node.op == "get_attr" else name)
            spec = text.parameters[name] if node.op == "get_attr" else text.inputs[name]
            nodes[node].meta["val"], reals[nodes[node]] = _fake(spec, sizes, fakes)
            continue
        args, kwargs = map_arg((node.args, node.kwargs), lambda operand: nodes[operand])
        name = "getitem" if is_getitem(node) else node.target._schema.name.split("::")[1]
        nodes[node] = graph.create_node("call_function", node.target, args, dict(kwargs), name)
        nodes[node].meta["val"] = _call(nodes[node], fakes, reals)
    graph.output(tuple(returned)).meta["val"] = tuple(node.meta["val"] for node in returned)
    leaves = [
        *(InputSpec(InputKind.PARAMETER, TensorArgument(f"p_{name}"), name) for name in text.parameters),
        *(InputSpec(InputKind.USER_INPUT, TensorArgument(name), None) for name in text.inputs),
    ]
    results = [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in returned]
    environment = fakes.mode.shape_env
    ranges = dict.fromkeys(environment.var_to_range if environment else (), ValueRanges(1, MAX_SIZE))
    signature = ExportGraphSignature(leaves, results)
    inputs = tuple(text.inputs.values())
    known = fakes.results if sizes else {}
    return Traced(graph, torch.nn.Module(), signature, dict(parameters), {}, ranges, inputs, known)


@cache
def _numbers() -> _Fakes:
    """Returns the fake mode that all programs with static sizes share. It caches the results of ops itself."""
    return _Fakes(FakeTensorMode())


def _symbolic() -> _Fakes:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    # The cache would return a result computed under a true condition even where the condition is assumed false.
    mode.cache_enabled = False
    return _Fakes(mode)


@lru_cache(maxsize=8)
def _shared(sizes: tuple[tuple[str, int], ...]) -> _Fakes:
    """Returns the fake mode and fake values that programs with the same symbolic sizes share."""
    del sizes
    return _symbolic()


_LEAVES = ("get_attr", "placeholder")


def _fake(spec: TensorSpec, sizes: Mapping[str, int], fakes: _Fakes) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a fake tensor and a real tensor of zeros for a placeholder."""
    if fakes.mode.shape_env is None:
        tensor = torch.zeros(spec.sizes(sizes), dtype=torch_dtype(spec.dtype))
        return likeness(fakes.mode, tensor), tensor
    if spec not in fakes.leaves:
        fakes.leaves[spec] = _symbolic_leaf(spec, sizes, fakes.mode, fakes.mode.shape_env, len(fakes.leaves))
    return fakes.leaves[spec]


def _symbolic_leaf(
    spec: TensorSpec, sizes: Mapping[str, int], mode: FakeTensorMode, environment: ShapeEnv, number: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a fake tensor with symbolic sizes and a real tensor of zeros.

    Dims with equal sizes share one symbol (`DimDynamic.DUCK`). This is correct because differently named dims have
    different sizes.
    """
    from torch._dynamo.source import ConstantSource  # the import takes a second, which most commands can avoid

    tensor = torch.zeros(spec.sizes(sizes), dtype=torch_dtype(spec.dtype))
    kinds = [DimDynamic.DUCK if isinstance(size, Dim) else DimDynamic.STATIC for size in spec.shape]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    fake = mode.from_tensor(tensor, symbolic_context=context, source=ConstantSource(f"{spec.name}_{number}"))
    for symbol in environment.var_to_range:
        environment.var_to_range[symbol] = ValueRanges(2, MAX_SIZE)
    return fake, tensor


def _call(node: Node, fakes: _Fakes, reals: dict[Node, Any]) -> Any:
    """Runs the op of a node and returns the result as a fake value.

    If all sizes are static, the op runs on real tensors, which is faster than running it on fake tensors.
    """
    mode = fakes.mode
    values = reals if mode.shape_env is None else {operand: operand.meta["val"] for operand in node.all_input_nodes}
    given: Any = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
    args, kwargs = given
    check_call(node.target, args)
    if is_getitem(node):
        result = args[0][args[1]]
    elif mode.shape_env is None:
        with torch.no_grad():
            result = node.target(*args, **kwargs)  # type: ignore[operator]  # graph_of: an op
    else:
        key = (node.target, key_of(args), key_of(list(kwargs.items())))
        if key in fakes.results:
            return fakes.results[key]
        result = run_for_all_sizes(mode, lambda: node.target(*args, **kwargs))  # type: ignore[operator]  # as above
        if not free_unbacked_symbols(result):
            fakes.results[key] = result
    if mode.shape_env is not None:
        return result
    reals[node] = result
    return likeness(mode, result)
