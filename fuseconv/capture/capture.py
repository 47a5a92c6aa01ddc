"""Captures a `Subject` as a `Program` with torch.export: positional tensors in, a tuple of tensors out.

The program is not decomposed: the graph keeps aten.linear, gelu, layer_norm and scaled_dot_product_attention, which the
rules match. In-place ops on temporaries are kept; see `purity` for in-place ops on inputs and buffers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.fx.experimental.sym_node import SymNode

from fuseconv.capture.agreement import agrees, hold
from fuseconv.capture.assigned import drop_stray_writes
from fuseconv.capture.causal_hint import without_causal_hint
from fuseconv.capture.complex_pairs import pair_complex_numbers
from fuseconv.capture.deferred import Guards, declare_ranges, export_proving, release
from fuseconv.capture.drawn import open_integers, with_taken_ranges
from fuseconv.capture.errors import constrained_dims, explain, explain_suspect
from fuseconv.capture.foreign_ops import spell_out
from fuseconv.capture.inverse_stft import inverse_stft_of_any_length
from fuseconv.capture.linear_spaces import linear_spaces_of_any_length
from fuseconv.capture.placement import place
from fuseconv.capture.pools import pools_of_any_length
from fuseconv.capture.purity import purify
from fuseconv.capture.regions import inline_regions
from fuseconv.capture.results import export_registering
from fuseconv.capture.state import check_state
from fuseconv.capture.tables import compute_tables
from fuseconv.capture.transforms import expand_transforms
from fuseconv.capture.unchecked import distributions_without_checks
from fuseconv.contract.dims import Dim
from fuseconv.contract.inputs import draw, example_sizes
from fuseconv.contract.spec import TensorSpec
from fuseconv.contract.values import has_range
from fuseconv.errors import UnsupportedError
from fuseconv.graph.derived_sizes import read_sizes_of_inputs
from fuseconv.graph.indexed import indexed_sizes
from fuseconv.graph.op_aliases import name_ops_once
from fuseconv.graph.recurrent import any_number_of_steps
from fuseconv.program.calling import arguments, bound_shapes
from fuseconv.program.captured import Program
from fuseconv.program.original import Kind, Original, keeping_buffers
from fuseconv.program.quiet import quiet_torch
from fuseconv.sizes import multiples
from fuseconv.sizes.larger_sizes import larger_sizes
from fuseconv.sizes.named_sizes import named_sizes
from fuseconv.sizes.size_guards import suspects
from fuseconv.sizes.telling_sizes import telling_sizes
from fuseconv.sizes.unusual_sizes import all_unusual, chosen_unusual, line_of
from fuseconv.sources import Subject
from fuseconv.sources.flat import flatten, input_order

_ALONE = threading.RLock()
"""Held while torch's functions are replaced for an export: threads that export take turns."""


def capture(subject: Subject, device: str = "cpu") -> Program:
    """Captures a subject as a program with dynamic dims, and checks that it computes the model's results.

    Args:
        subject: the model on the CPU, and its contract. An archive's tensors are moved to the device.
        device: `cpu` or `cuda`, where the program is returned and, unless integer inputs have no range, the results
            are compared.

    Raises:
        UnsupportedError: the model cannot be exported with this contract (the error names the source line), or the
            captured program differs from the model at some sizes.
        UsageError: the model rejects the inputs of the contract, or its state does not match the contract.
    """
    sizes = example_sizes(subject.contract)
    tensors = draw(subject.contract, sizes, seed=0)
    try:
        exported = _spelled_out(subject, tensors)
    except Exception as error:
        for larger in larger_sizes(subject.contract, constrained_dims(error, subject.contract)):
            others = draw(subject.contract, larger, seed=0)
            try:
                return _checked(subject, device, _spelled_out(subject, others), larger, others)
            except Exception as failure:  # noqa: BLE001 - the first error is the one to report
                logging.getLogger("fuseconv").debug("the capture at %s failed: %s", larger, failure)
        raise explain(error, subject, tensors, export) from error
    return _checked(subject, device, exported, sizes, tensors)


def _spelled_out(subject: Subject, tensors: Sequence[torch.Tensor]) -> ExportedProgram:
    return spell_out(expand_transforms(export(subject, tensors)))


def _checked(
    subject: Subject,
    device: str,
    exported: ExportedProgram,
    sizes: Mapping[str, int],
    tensors: tuple[torch.Tensor, ...],
) -> Program:
    """Returns an exported subject as a program after checking that it computes the model's results.

    Args:
        subject: the model on the CPU, and its contract.
        device: `cpu` or `cuda`.
        exported: the result of `export`.
        sizes: the size of each dim in the export.
        tensors: the inputs of the export.

    Raises:
        UnsupportedError: the program differs from the model at some sizes.
        UsageError: the model's state does not match the contract.
    """
    contract = subject.contract
    flat = flatten(exported, [spec.name for spec in contract.inputs], subject.call, subject.examples)
    if not flat.outputs:
        raise UnsupportedError(
            "the model returns no tensor", where=type(subject.module).__name__, fix="return one or more tensors"
        )
    assumptions = release(flat.exported, contract)
    inline_regions(flat.exported, contract.device)
    name_ops_once(flat.exported)
    kind: Kind = "archive" if subject.source == "pt2" else "module"
    purify(flat.exported, kind)
    read_sizes_of_inputs(flat.exported)
    compute_tables(flat.exported)
    pair_complex_numbers(flat.exported)
    specs = tuple(_with_range(spec, flat.exported) for spec in contract.inputs)
    contract = replace(contract, inputs=specs, outputs=flat.outputs)
    check_state(flat.exported, contract)
    original = Original(subject.original or subject.module, subject.call, kind)
    guards = suspects(flat.exported, contract)
    if kind == "archive" and guards:
        raise explain_suspect(guards[0], subject, tensors, export)
    _forget_addresses(flat.exported)
    # Integers without a range are tried on the CPU: on a GPU, an index out of range ends the process.
    where = "cpu" if open_integers(contract) else device
    contract = with_taken_ranges(original, contract, example_sizes(contract))
    program = place(Program(flat.exported, contract, subject.examples, original), where)
    exported, contract, original = program.exported, program.contract, program.original or original
    for suspect in guards:
        if not agrees(exported, contract, original, suspect.sizes):
            raise explain_suspect(suspect, subject, tensors, export)
    telling = [*telling_sizes(contract, named_sizes(subject.module)), *all_unusual(assumptions, contract)]
    tried = [sizes, *(one for one in telling if one != sizes)]
    hold(exported, contract, original, tried, partial(line_of, assumptions))
    # Random examples are generated again, within the ranges of input values that the graph allows.
    examples = draw(contract, example_sizes(subject.contract), seed=0) if subject.drawn else program.examples
    exported.example_inputs = (examples, {})
    unusual = tuple(chosen_unusual(assumptions, contract))
    return place(replace(program, examples=examples, unusual=unusual), device)


def _forget_addresses(exported: ExportedProgram) -> None:
    """Removes `from_node` from the metadata of nodes, because archives would contain the memory addresses in it."""
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            node.meta.pop("from_node", None)


def export(subject: Subject, tensors: Sequence[torch.Tensor]) -> ExportedProgram:
    """Exports a subject with the dynamic dims of its contract and without gradients, and returns the program.

    Args:
        subject: the model and its contract.
        tensors: one example tensor per input of the contract.
    """
    args, kwargs = arguments(subject.call, tensors)

    def exported(guards: Guards) -> ExportedProgram:
        shapes = [_dynamic(spec, ranged=guards != "unranged") for spec in subject.contract.inputs]
        program = torch.export.export(
            subject.module,
            args,
            kwargs,
            dynamic_shapes=bound_shapes(subject.module.forward, subject.call, shapes),
            strict=False,
            prefer_deferred_runtime_asserts_over_guards=guards != "checked",
        )
        if guards == "unranged":
            declare_ranges(program, subject.contract, _equal_sizes(subject, program))
        return program

    with (
        _ALONE,
        torch.no_grad(),
        quiet_torch(),
        keeping_buffers(subject.module),
        without_causal_hint(),
        any_number_of_steps(),
        pools_of_any_length(),
        inverse_stft_of_any_length(),
        linear_spaces_of_any_length(),
        distributions_without_checks(),
    ):
        program = export_registering(
            partial(
                export_proving,
                exported,
                partial(_equal_sizes, subject),
                partial(multiples.check, contract=subject.contract),
            ),
            subject.module,
            args,
            kwargs,
        )
    drop_stray_writes(program)
    return program


def _equal_sizes(subject: Subject, program: ExportedProgram) -> Mapping[str, Sequence[SymNode]]:
    """Returns the sizes of each dynamic dim by its name, one for each axis of an input of the program."""
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    sizes: dict[str, list[SymNode]] = {}
    for name, spec in zip(input_order(program, subject.call), subject.contract.inputs, strict=True):
        for dim, size in zip(spec.shape, placeholders[name].meta["val"].shape, strict=True):
            if isinstance(dim, Dim) and isinstance(size, torch.SymInt):
                sizes.setdefault(dim.name, []).append(size.node)
    return sizes


def _dynamic(spec: TensorSpec, *, ranged: bool) -> dict[int, Any]:
    """Returns a map from each dynamic axis of an input to its torch.export.Dim.

    A dim whose range has a single size is static. Unless `ranged`, a dim without a step is exported for all sizes.
    """
    return {
        axis: multiples.exported_as(size) if ranged or size.step > 1 else torch.export.Dim.DYNAMIC
        for axis, size in enumerate(spec.shape)
        if isinstance(size, Dim) and size.min < size.max
    }


def _with_range(spec: TensorSpec, exported: ExportedProgram) -> TensorSpec:
    """Returns an integer input's spec with the range of valid row numbers of the tables that the input indexes.

    The spec is returned unchanged if it has a range, or if the input indexes no table of static size.
    """
    if has_range(spec) or spec.dtype not in ("i64", "i32"):
        return spec
    node = next(node for node in exported.graph.nodes if node.op == "placeholder" and node.name == spec.name)
    rows = [size for size in indexed_sizes(node) if isinstance(size, int)]
    return replace(spec, low=0, high=int(min(rows)) - 1) if rows else spec
