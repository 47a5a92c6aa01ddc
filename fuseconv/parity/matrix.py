"""Builds the parity matrix: compares every target of a bundle, in Python and in C++, with the original and float64."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.manifest import Manifest
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError, FuseconvError, ParityError, UnsupportedError, UpstreamError
from fuseconv.parity.cases import Case
from fuseconv.parity.reference import Reference, tried_of
from fuseconv.parity.report import OutputRow, Report, worst
from fuseconv.parity.verification import (
    compare_case,
    outputs_of,
    references_of,
    with_limits,
)
from fuseconv.program.captured import Program
from fuseconv.runtime import cpp
from fuseconv.runtime.model import load_target
from fuseconv.targets import TARGETS

ROWS: Mapping[str, tuple[str, bool]] = {
    f"{name}+graph" if graphed else name: (name, graphed)
    for name, target in TARGETS.items()
    for graphed in (False, True)[: 1 + target.SPEC.cuda_graphs]
}
"""The rows of the matrix by name. A row is a target's name, and whether its calls are captured in CUDA graphs."""

RUNTIMES = ("python", "cpp")

Run = Callable[[Case], Sequence[torch.Tensor]]
"""A function that runs a target on the inputs of a case, and returns the outputs."""


@dataclass(frozen=True)
class Cell:
    """A cell of the matrix: one target in one runtime, with or without CUDA graphs.

    Attributes:
        name: the name of the matrix row: a target, with `+graph` if its calls are captured in CUDA graphs.
        runtime: `python` or `cpp`.
        rows: one comparison per case and output. Empty if the cell cannot run on this machine.
        absent: the reason why the cell cannot run on this machine, with a fix. None if the cell ran.
    """

    name: str
    runtime: str
    rows: tuple[OutputRow, ...] = ()
    absent: FuseconvError | None = None

    @property
    def ok(self) -> bool | None:
        """Whether every comparison passes. None if nothing was compared."""
        return all(row.ok for row in self.rows) if self.rows else None

    def to_json(self) -> dict[str, Any]:
        """Returns the cell as JSON-serializable values: the status with the largest errors, or a reason and a fix."""
        target, cuda_graphs = ROWS[self.name]
        which = {"row": self.name, "target": target, "cuda_graphs": cuda_graphs, "runtime": self.runtime}
        if self.absent is not None:
            return {**which, "status": "unavailable", "reason": self.absent.what, "fix": self.absent.fix}
        return {**which, "status": "ok" if self.ok else "fail", **worst(self.rows)}


@dataclass(frozen=True)
class Matrix:
    """The parity of a bundle in every runtime.

    Attributes:
        device: the device on which the targets ran: `cpu` or `cuda`.
        program: the path of the fuseconv-run that runs the C++ cells. None if fuseconv-run is not built.
        cells: the cells, row by row.
    """

    device: str
    program: Path | None
    cells: tuple[Cell, ...]

    def report(self) -> Report:
        """Returns a report on all cells. The `target` of a row is its cell, for example `export in python`."""
        return Report(
            tuple(replace(row, target=f"{cell.name} in {cell.runtime}") for cell in self.cells for row in cell.rows)
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the matrix as JSON-serializable values."""
        return {
            "ok": self.error("") is None,
            "device": self.device,
            "program": None if self.program is None else str(self.program),
            "cells": [cell.to_json() for cell in self.cells],
            "rows": [{"runtime": cell.runtime, **row.to_json()} for cell in self.cells for row in cell.rows],
        }

    def error(self, where: str) -> FuseconvError | None:
        """Returns an error if a cell fails or if no cell can run on this machine, otherwise None."""
        failing = [row for cell in self.cells for row in cell.rows if not row.ok]
        if failing:
            cells = [f"{cell.name} in {cell.runtime}" for cell in self.cells if cell.ok is False]
            first = failing[0]
            return ParityError(
                f"{len(cells)} cells failed: {', '.join(cells)}; first: case {first.case}, output {first.output}: "
                f"{first.row.reason}",
                where=where,
                fix="convert the model again on this machine, or leave the target out",
            )
        if not any(cell.rows for cell in self.cells):
            return UnsupportedError(
                "no target of the bundle runs on this machine",
                where=where,
                fix="correct what the reasons of the cells name",
            )
        return None


def verify_runtimes(
    folder: Path,
    manifest: Manifest,
    *,
    targets: Collection[str] = tuple(TARGETS),
    against: Program | None = None,
    inputs: tuple[torch.Tensor, ...] | None = None,
    program: Path | None,
    progress: Callable[[str], AbstractContextManager[None]],
) -> Matrix:
    """Runs every target of a bundle in Python and in C++, compares each output, and returns the matrix.

    Args:
        folder: the absolute path of the bundle.
        manifest: the manifest of the bundle. The caller has verified the hashes of the files; they are not hashed
            again.
        targets: the names of the targets in the matrix. Default: all targets, also those that the bundle lacks.
        against: the original program, which computes the expected outputs. None to read the outputs from the bundle.
        inputs: one tensor per contract input, used instead of the default cases. Requires `against`.
        program: the path of fuseconv-run. If None, the C++ cells are unavailable.
        progress: called with the name of every cell that runs. Returns a context manager in which the cell runs.

    Raises:
        UsageError: `against` is a different model, or `inputs` is given without `against`.
        UpstreamError: the bundle requires a CUDA device and there is none.
    """
    references = tried_of(references_of(folder, manifest, against, inputs))
    cells = []
    for name in (name for name, (target, _) in ROWS.items() if target in targets):
        for runtime in RUNTIMES:
            absent = _absent(name, runtime, manifest, program)
            if absent is not None:
                cells.append(Cell(name, runtime, absent=absent))
                continue
            with progress(f"{name}, {runtime}"):
                cells.append(_cell(name, runtime, folder, manifest, references, program))
    return Matrix(manifest.contract.device, program, tuple(cells))


def _absent(name: str, runtime: str, manifest: Manifest, program: Path | None) -> UnsupportedError | None:
    """Returns the reason why a cell cannot run, or None if no reason is known before the cell is run."""
    target, cuda_graphs = ROWS[name]
    if target not in manifest.targets:
        return UnsupportedError(f"the bundle has no target {target}", fix=f"convert the model with --target {target}")
    if cuda_graphs and manifest.contract.device != "cuda":
        return UnsupportedError("CUDA graphs need a CUDA device", fix="convert the model with --device cuda")
    if runtime == "cpp" and (error := cpp.unsupported(target)) is not None:
        return error
    if runtime == "cpp" and program is None:
        return UnsupportedError(
            f"{cpp.NAME} is not built",
            fix=f"add --build-runtime, put {cpp.NAME} on the PATH, or set {cpp.VARIABLE} to its path",
        )
    return None


def _cell(
    name: str, runtime: str, folder: Path, manifest: Manifest, references: Sequence[Reference], program: Path | None
) -> Cell:
    target, cuda_graphs = ROWS[name]
    contract = manifest.contract
    cases = [reference.case for reference in references]
    try:
        if runtime == "python":
            run = _in_python(folder, manifest, target, cuda_graphs, cases)
        else:
            assert program is not None  # otherwise `_absent` has returned the reason
            run = _in_cpp(program, folder, target, contract, cuda_graphs, cases)
    except UnsupportedError as error:
        return Cell(name, runtime, absent=error)
    except (ContractError, UpstreamError) as error:
        run = partial(_fail, error)
    rows = [row for reference in references for row in compare_case(name, contract, reference, run)]
    return Cell(name, runtime, tuple(with_limits(rows, manifest, target)))


def _in_python(folder: Path, manifest: Manifest, target: str, cuda_graphs: bool, cases: Sequence[Case]) -> Run:
    model = load_target(folder, manifest, target, cuda_graphs=cuda_graphs)
    try:
        for case in cases if cuda_graphs else ():  # the compared call must replay a graph, not capture it
            outputs_of(model, case)
    except UpstreamError:
        if (reason := model.cuda_graphs.reason) is None:
            raise
        raise UnsupportedError(
            f"CUDA graphs cannot be used: {reason}",
            where=str(folder),
            fix="load the target with cuda_graphs='auto' or False",
        ) from None
    return partial(outputs_of, model)


def _in_cpp(
    program: Path, folder: Path, target: str, contract: Contract, cuda_graphs: bool, cases: Sequence[Case]
) -> Run:
    """Runs all cases in one process of fuseconv-run. Returns a function that looks up the outputs of a case."""
    calls = [dict(zip(contract.names, case.inputs, strict=True)) for case in cases] * (2 if cuda_graphs else 1)
    results = cpp.run(program, folder, target, calls, device=contract.device, cuda_graphs=cuda_graphs)
    outputs = {case.name: result for case, result in zip(cases, results[-len(cases) :], strict=True)}
    return lambda case: [outputs[case.name][name] for name in contract.outputs]


def _fail(error: FuseconvError, case: Case) -> Sequence[torch.Tensor]:  # noqa: ARG001 - the signature of Run
    raise error
