"""Runs every target of a bundle on the reference cases, and compares each output with the expected outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from fuseconv.bundle.manifest import Manifest, open_bundle
from fuseconv.contract.options import Options
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError, UpstreamError, UsageError
from fuseconv.numerics.tolerance import compare, incomparable
from fuseconv.parity.cases import Case, cases
from fuseconv.parity.padding import hard
from fuseconv.parity.reference import (
    REFERENCE,
    Reference,
    read_reference,
    refer,
    tried_of,
    uncompared_of,
    untried_of,
)
from fuseconv.parity.report import OutputRow, Report
from fuseconv.program.captured import Program
from fuseconv.runtime.model import Model, check_device, load_target
from fuseconv.runtime.rows import batched, rows_of, unpadded
from fuseconv.sources.subject import digest


def verify(
    bundle: str | Path, *, against: Program | None = None, inputs: tuple[torch.Tensor, ...] | None = None
) -> Report:
    """Runs every target of a bundle, compares each output with the expected output, and returns the report.

    Args:
        bundle: the folder of the bundle.
        against: the original program, which computes the expected outputs. None to read the outputs from the bundle.
        inputs: one tensor per contract input, used instead of the default cases. Requires `against`.

    Raises:
        UsageError: the bundle does not exist, `against` is a different model, or `inputs` is given without `against`.
        RefusedError: the bundle is damaged.
        UnsupportedError: a target cannot run on this machine.
        UpstreamError: no CUDA device is available, or an artifact cannot be loaded.
    """
    folder = Path(bundle).absolute()
    manifest = open_bundle(folder)
    every = references_of(folder, manifest, against, inputs)
    references = tried_of(every)
    rows: list[OutputRow] = []
    for target in sorted(manifest.targets):
        rows += verify_target(folder, manifest, target, references)
    return Report(tuple(rows), untried_of(every), uncompared_of(every, manifest.contract))


def verify_target(folder: Path, manifest: Manifest, target: str, references: Sequence[Reference]) -> list[OutputRow]:
    """Runs one target of an opened bundle, and returns one row per case and output. Raises the errors of `verify`."""
    model = load_target(folder, manifest, target)
    rows = [
        row
        for reference in references
        for row in compare_case(target, manifest.contract, reference, partial(outputs_of, model))
    ]
    return with_limits([*rows, *_compare_padded(model, references)], manifest)


def with_limits(rows: Sequence[OutputRow], manifest: Manifest, target: str | None = None) -> list[OutputRow]:
    """Returns the rows, with `limit` set in each row that the manifest lists as a limitation of its target.

    Args:
        rows: the rows, which are not changed.
        manifest: lists the limitations.
        target: the name of the target under which the manifest lists the rows. None for each row's own target.
    """
    limits = {(limit.target, limit.case, limit.output) for limit in manifest.limits}
    return [replace(row, limit=(target or row.target, row.case, row.output) in limits) for row in rows]


def as_converted(manifest: Manifest, model: str | Path, options: Options) -> Options:
    """Returns the options for reading a bundle's original model, completed with the bundle's inputs and dtype.

    The device is always the bundle's.

    Raises:
        FileError: the model cannot be read.
        UsageError: the bundle was converted from a different model.
    """
    sha256 = digest(Path(model))
    if sha256 != manifest.source.sha256:
        raise UsageError(
            f"{model} is not the model from which the bundle was converted: its sha256 is {sha256}",
            where="--against",
            fix=f"pass the model with sha256 {manifest.source.sha256}",
        )
    contract = manifest.contract
    return replace(
        options,
        inputs=options.inputs or contract.inputs,
        dtype=options.dtype or manifest.source.dtype,
        device=contract.device,
    )


def references_of(
    folder: Path, manifest: Manifest, against: Program | None, inputs: tuple[torch.Tensor, ...] | None
) -> list[Reference]:
    """Reads the references from a bundle, or computes the references with `against`. Raises the errors of `verify`."""
    contract = manifest.contract
    check_device(contract.device, folder)
    if against is None:
        if inputs is not None:
            raise UsageError(
                "other inputs need the original model, which computes the expected outputs",
                where="--inputs",
                fix="add --against MODEL",
            )
        return read_reference(folder / REFERENCE, contract)
    if _signature(against.contract) != _signature(contract):
        raise UsageError(
            f"the model's contract is {_signature(against.contract)}, but the bundle's is {_signature(contract)}",
            where="--against",
            fix="pass the model from which the bundle was converted, with the same --input",
        )
    return refer(against, cases(against) if inputs is None else [Case("given", contract.bind(inputs, {}))])


def _signature(contract: Contract) -> str:
    return f"{', '.join(map(str, contract.inputs))} -> {', '.join(contract.outputs)} on {contract.device}"


def outputs_of(model: Model, case: Case) -> tuple[torch.Tensor, ...]:
    """Calls a model on the inputs of a case, and returns the outputs as a tuple."""
    result = model(*case.inputs)
    return (result,) if len(model.contract.outputs) == 1 else tuple(result)


def compare_case(
    target: str,
    contract: Contract,
    reference: Reference,
    run: Callable[[Case], Sequence[torch.Tensor]],
) -> list[OutputRow]:
    """Runs a case, compares its outputs, and returns one row per output. If the run fails, each row gives the error.

    Returns an empty list for a case without expected outputs, because the original model was not run.
    """
    if reference.case.untried:
        return []
    try:
        triples = zip(run(reference.case), reference.original, reference.fp64, strict=True)
        compared = [compare(*triple, may_overflow=reference.case.kind == "special") for triple in triples]
    except (UpstreamError, ContractError) as error:
        compared = [incomparable(error.what)] * len(contract.outputs)
    rows = zip(contract.outputs, compared, strict=True)
    return [OutputRow(target, reference.case.name, name, row, reference.case.kind) for name, row in rows]


def _compare_padded(model: Model, references: Sequence[Reference]) -> list[OutputRow]:
    """Pads the first case that needs padding with the values of `hard`, and checks that its outputs do not change.

    Returns an empty list if the contract has no buckets, or if no case needs padding.
    """
    contract, buckets = model.contract, model.contract.buckets
    if buckets is None:
        return []
    has = batched(contract, buckets)
    sizes = {index: rows_of(reference.case.inputs, has) for index, reference in enumerate(references)}
    index = next((index for index, rows in sizes.items() if buckets.rounded(rows) > rows), None)
    if index is None:
        return []
    reference, rows = references[index], sizes[index]
    name = f"{reference.case.name}, padded to {buckets.dim} {buckets.rounded(rows)}"
    padded = replace(reference, case=Case(name, hard(contract, buckets, reference.case.inputs)))
    return compare_case(model.target, contract, padded, lambda case: unpadded(outputs_of(model, case), contract, rows))
