"""Writes a program as an ONNX file: calls the exporter, corrects its model, and sets the names of the contract."""

from __future__ import annotations

import itertools
import logging
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fuseconv.errors import FileError, UnsupportedError, UpstreamError
from fuseconv.graph.nodes import source_line
from fuseconv.graph.recurrent import any_number_of_steps
from fuseconv.program.captured import Program, dim_symbols
from fuseconv.targets.onnx_recurrent import WRITTEN
from fuseconv.targets.onnx_session import OTHER_DTYPE
from fuseconv.targets.onnx_weights import refer_to, unfolded
from fuseconv.targets.own_outputs import own_outputs

if TYPE_CHECKING:
    from fuseconv.weights.store import Store

OPSET = 22
"""The first opset in which every operator accepts bfloat16. Gelu was added in opset 20."""

_FUNCTION_OVERLOADS_IR = 10

_TRANSLATED = re.compile(r"translating node %(?P<node>\w+) :.*target=torch\.ops\.(?P<op>[\w.]+)\]")
"""What the exporter says about the node at which it fails."""


def save(program: Program, path: Path, store: Store | None = None) -> None:
    """Exports a program to an ONNX file and checks that the file is a valid model.

    This function does not check that ONNX Runtime has kernels for the operators.

    Args:
        program: the program to export.
        path: the path of the model to write.
        store: the store for the weights. None to write the weights to `{path}.data`.

    Raises:
        UnsupportedError: ONNX cannot express an operator.
        UpstreamError: the exporter failed or wrote an invalid model.
        FileError: a file cannot be written.
    """
    import onnx
    import onnx_ir as ir

    program = own_outputs(program)
    inputs, device = list(program.contract.names), program.contract.device
    names = _distinct(program.contract.outputs, inputs)
    outputs = _apart(names, {*program.exported.state_dict, *program.exported.constants})
    model = _export(program.exported, device, inputs, outputs)
    _name_outputs(model, names)
    _name_dims(model, program)
    _add_functions(model, device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if store is not None:
            refer_to(model, store)
        ir.save(model, path, external_data=f"{path.name}.data" if store is None else None)
    except OSError as error:
        raise FileError.unwritable("the model cannot be written", error, str(path)) from error
    try:
        onnx.checker.check_model(path, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        if "unsupported type" in str(error):
            raise UnsupportedError(
                f"the model cannot be exported to ONNX opset {OPSET}: {error}", where="the target onnx", fix=OTHER_DTYPE
            ) from error
        raise UpstreamError(f"the exported ONNX model is not valid: {error}", where="the target onnx") from error


def _distinct(outputs: Sequence[str], inputs: Sequence[str]) -> list[str]:
    """Returns the output names, with the suffix `_out` added to each output whose name is also the name of an input."""
    taken = {*inputs, *outputs}
    names = []
    for name in outputs:
        if name in inputs:
            name = next(new for at in itertools.count() if (new := f"{name}_out{at or ''}") not in taken)  # noqa: PLW2901
            taken.add(name)
        names.append(name)
    return names


def _apart(outputs: Sequence[str], weights: Collection[str]) -> list[str]:
    """Returns the output names, with a placeholder `output_N` for each output whose name is also the name of a weight.

    The exporter puts outputs and weights in one namespace. `_name_outputs` restores the names afterwards.
    """
    free = (name for at in itertools.count() if (name := f"output_{at}") not in weights and name not in outputs)
    return [next(free) if name in weights else name for name in outputs]


def _name_outputs(model: Any, names: Sequence[str]) -> None:
    """Sets the names of the outputs, and renames each weight whose name is also the name of an output."""
    initializers = model.graph.initializers
    for value, name in zip(model.graph.outputs, names, strict=True):
        if value.name == name:
            continue
        if (weight := initializers.pop(name, None)) is not None:
            weight.name = next(new for at in itertools.count() if (new := f"{name}_{at}") not in initializers)
            initializers.add(weight)
        value.name = name


def _export(
    exported: torch.export.ExportedProgram, device: str, inputs: list[str] | None, outputs: list[str] | None
) -> Any:
    """Calls the exporter, corrects its model, and returns the model as an onnx_ir.Model.

    Args:
        exported: the program to export.
        device: `cpu` or `cuda`: the device on which ONNX Runtime will run the model.
        inputs: the names of the inputs. None keeps the exporter's names.
        outputs: the names of the outputs. None keeps the exporter's names.

    Raises:
        UnsupportedError: ONNX cannot express an operator.
        UpstreamError: the exporter failed for another reason.
    """
    import onnxscript.optimizer

    from fuseconv.targets.onnx_attention import scaled_dot_product_attention
    from fuseconv.targets.onnx_axes import count_axes_from_the_first
    from fuseconv.targets.onnx_clamp import clamp, clamp_max, clamp_min
    from fuseconv.targets.onnx_empty_sums import widen_empty_sums
    from fuseconv.targets.onnx_functions import translations
    from fuseconv.targets.onnx_group_norm import group_norm, instance_norm
    from fuseconv.targets.onnx_layer_norm import write_out_long_layer_norms
    from fuseconv.targets.onnx_long_sums import split_long_sums
    from fuseconv.targets.onnx_numbers import keep_factors, numbers_of, write_exactly
    from fuseconv.targets.onnx_pools import conv3d, keep_pads
    from fuseconv.targets.onnx_sizes import Sizes
    from fuseconv.targets.onnx_spellings import prepared
    from fuseconv.targets.onnx_squeeze import squeeze, squeeze_dim, squeeze_dims

    try:
        with _exporting(device), any_number_of_steps(WRITTEN):
            program = torch.onnx.export(
                prepared(exported),
                (),
                dynamo=True,
                opset_version=OPSET,
                input_names=inputs,
                output_names=outputs,
                custom_translation_table={
                    **translations(),
                    torch.ops.aten.clamp.default: clamp,
                    torch.ops.aten.clamp_max.default: clamp_max,
                    torch.ops.aten.clamp_min.default: clamp_min,
                    torch.ops.aten.conv3d.default: conv3d,
                    torch.ops.aten.group_norm.default: group_norm,
                    torch.ops.aten.instance_norm.default: instance_norm,
                    torch.ops.aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
                    torch.ops.aten.squeeze.default: squeeze,
                    torch.ops.aten.squeeze.dim: squeeze_dim,
                    torch.ops.aten.squeeze.dims: squeeze_dims,
                },
                verbose=False,
                optimize=False,
            )
            assert program is not None
            assert program.exported_program is not None
            # Only constants are folded. The exporter's own optimizer would also rewrite patterns. That is the task of
            # rules, whose results are verified. For example, onnxscript 0.7 folds a bfloat16 batch norm into float32
            # weights.
            onnxscript.optimizer.inline(program.model)
            write_exactly(program.model, numbers_of(program.exported_program))
            onnxscript.optimizer.fold_constants(program.model, onnx_shape_inference=True, should_fold=unfolded)
            sizes = Sizes(exported.range_constraints)
            if device == "cpu":
                write_out_long_layer_norms(program.model, sizes)
                split_long_sums(program.model, sizes)
            onnxscript.optimizer.remove_unused_nodes(program.model)
            keep_factors(program.model)
            widen_empty_sums(program.model, sizes)
            keep_pads(program.model)
            count_axes_from_the_first(program.model.graph.all_nodes())
    except torch.onnx.errors.OnnxExporterError as error:
        causes = list(_causes(error))
        reason = str(causes[-1]).strip()
        if isinstance(causes[-1], TypeError) and reason.startswith("Unsupported attribute type"):
            op, line = _refused(causes, exported)
            raise UnsupportedError(
                f"ONNX cannot express {op}: an attribute of its operator, such as the number of groups of a Conv, "
                "would change with the sizes of the inputs",
                where=line or "the target onnx",
                fix="give static sizes, or leave the target onnx out",
            ) from error
        if any(type(cause).__name__ == "DispatchError" for cause in causes):
            raise UnsupportedError(
                f"the model cannot be exported to ONNX: {reason}",
                where="the target onnx",
                fix="leave the target onnx out",
            ) from error
        raise UpstreamError(f"the ONNX exporter failed: {reason}", where="the target onnx") from error
    return program.model


def _refused(causes: Sequence[BaseException], exported: torch.export.ExportedProgram) -> tuple[str, str]:
    """Returns the name and the source line of the op that the exporter was translating when it failed."""
    found = next(filter(None, (_TRANSLATED.search(str(cause)) for cause in causes)), None)
    if found is None:
        return "an op", ""
    lines = (source_line(node) for node in exported.graph.nodes if node.name == found["node"])
    return found["op"], next(lines, "")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


@contextmanager
def _exporting(device: str) -> Iterator[None]:
    """Patches the exporter while the block runs: adds fuseconv's replacements of ops, and caches and silences it.

    The caches hold the exporter's tables of decompositions and translations, which take longer to build than many
    exports. Without silencing, the exporter logs that torchvision is missing and that its own lists are empty, and
    torch warns that the exporter copies tree specs in a deprecated way.

    Raises:
        UpstreamError: the exporter did not use the replacements, because this version of torch builds its tables in
            another place.
    """
    from torch.onnx._internal.exporter import _decomp, _registration

    from fuseconv.targets.onnx_spellings import respelling

    tables, registry = vars(_decomp), _registration.ONNXRegistry
    made, kept = tables[_TABLE], vars(registry)[_REGISTRY]
    asked = False

    def table(translated: set[Any]) -> dict[Any, Any]:
        nonlocal asked
        asked = True
        return respelling(_decompositions(made, frozenset(translated)), device)

    tables[_TABLE] = table
    setattr(registry, _REGISTRY, staticmethod(partial(_registry, getattr(registry, _REGISTRY))))
    try:
        with warnings.catch_warnings(), _only_errors(_registration.__name__, "onnx_ir._convenience"):
            warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
            yield
        if not asked:
            raise UpstreamError(
                f"the ONNX exporter of torch {torch.__version__} translates ops without fuseconv's replacements",
                where="the target onnx",
                fix="use a torch version with which fuseconv is tested",
            )
    finally:
        setattr(registry, _REGISTRY, kept)
        tables[_TABLE] = made


@contextmanager
def _only_errors(*names: str) -> Iterator[None]:
    """Lets the loggers of these names log errors only while the block runs."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


_TABLE = "create_onnx_friendly_decomposition_table"
_REGISTRY = "from_torchlib"


@cache
def _decompositions(make: Callable[[set[Any]], dict[Any, Any]], translated: frozenset[Any]) -> dict[Any, Any]:
    """Returns the exporter's decompositions of the ops that it does not translate.

    The result is cached, so callers must not change it.
    """
    return make(set(translated))


def _registry(build: Callable[..., Any], opset_version: int) -> Any:
    """Returns a copy of the exporter's cached registry of translations, to which the exporter may add translations."""
    made = _translations(build, opset_version)
    registry = copy(made)
    registry.functions = {op: list(translations) for op, translations in made.functions.items()}
    return registry


@cache
def _translations(build: Callable[..., Any], opset_version: int) -> Any:
    """Builds and caches the exporter's registry of translations, which is the same for every export."""
    return build(opset_version=opset_version)


def _name_dims(model: Any, program: Program) -> None:
    """Replaces the exporter's symbols in all shapes with the dim names of the contract, also inside expressions."""
    import onnx_ir as ir

    steps = {name: dim.step for name, dim in program.contract.dims().items()}
    names = {}
    for name, symbol in dim_symbols(program).items():
        names[str(symbol)] = name if steps[name] == 1 else f"({name}//{steps[name]})"
        names[str(steps[name] * symbol)] = name
    for value in _values(model.graph):
        if value.shape is not None:
            value.shape = ir.Shape(
                [_renamed(dim.value, names) if isinstance(dim, ir.SymbolicDim) else dim for dim in value.shape]
            )


def _values(graph: Any) -> Iterator[Any]:
    yield from graph.inputs
    for node in graph.all_nodes():
        yield from node.outputs


def _renamed(expression: str | None, names: Mapping[str, str]) -> str | None:
    if expression is None or expression in names:
        return names.get(expression or "")
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), expression)


def _add_functions(model: Any, device: str) -> None:
    """Adds one function body per distinct call of a fuseconv op, and makes each node refer to its body's overload."""
    from fuseconv.ops import OPS
    from fuseconv.targets import onnx_functions

    ops = {op.overload: op for op in OPS}
    calls: dict[onnx_functions.Call, int] = {}
    for node in model.graph.all_nodes():
        if node.domain == onnx_functions.DOMAIN:
            origin = node.meta["node"]  # in the exporter's own copy of the graph
            call = onnx_functions.Call.of(origin, ops[origin.target])
            node.overload = str(calls.setdefault(call, len(calls)))
    if not calls:
        return
    for function in onnx_functions.bodies(list(calls), _exporter(device)):
        model.functions[function.identifier()] = function
    model.ir_version = max(model.ir_version, _FUNCTION_OVERLOADS_IR)


@cache
def _exporter(device: str) -> Callable[[torch.export.ExportedProgram], Any]:
    """Returns the one function per device that exports programs without names."""
    return lambda exported: _export(exported, device, None, None)
