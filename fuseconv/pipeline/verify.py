"""Verifies an existing bundle: every target, in Python or in every runtime of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuseconv.bundle.manifest import Manifest, open_bundle
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.errors import UsageError
from fuseconv.parity import matrix, process, verification
from fuseconv.parity.matrix import Matrix
from fuseconv.parity.reference import REFERENCE, uncompared_of, untried_of, write_reference
from fuseconv.parity.report import OutputRow, Report
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.read import read_program, silent
from fuseconv.program.captured import Program
from fuseconv.runtime import cpp
from fuseconv.runtime.choosing_targets import choose_targets
from fuseconv.sources import Options
from fuseconv.targets import TARGETS


def verify(
    bundle: str | Path,
    *,
    against: str | Path | None = None,
    target: Sequence[str] = (),
    options: Options | None = None,
    progress: Progress = silent,
) -> Report:
    """Verifies a bundle's parity on this machine, in a process that loads nothing but the bundle.

    Args:
        bundle: the folder of the bundle.
        against: the path of the original model, which computes the expected outputs. Default: the expected outputs are
            read from the bundle.
        target: the names of the targets to verify. Default: all targets of the bundle.
        options: how to read `against`. If `inputs_file` is set, the targets are compared on the inputs in this file.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        A report with one row per target, case and output. A row gives the measured errors, and `ok` tells whether all
        rows pass. In a bundle with several methods, a target of a method is named `METHOD/TARGET`.

    Raises:
        UsageError: `against` is not the model from which the bundle was converted, the bundle does not contain a
            target, or inputs are given without `against`.
        RefusedError: the bundle is damaged.
        FuseconvError: the original cannot be read, or a target does not run on this machine.

    Examples:
        >>> report = fuseconv.verify("mlp.fuseconv")
        >>> report.ok
        True
    """
    process.prepare()
    folder = Path(bundle)
    if has_methods(folder):
        return _verify_methods(folder, against, target, options or Options(), progress)
    manifest = open_bundle(folder)
    names = sorted(choose_targets(manifest, target, folder))
    program, inputs = _original(manifest, against, options or Options(), progress)
    with progress("verify"), tempfile.TemporaryDirectory() as scratch:
        references = verification.references_of(folder, manifest, program, inputs)
        reference = None
        if program is not None:
            reference = Path(scratch, REFERENCE)
            write_reference(reference, references, manifest.contract)
        found = process.verify(folder, names, reference=reference, hashed=True)
        for one in found.values():
            if one.error is not None:
                raise one.error
        rows = tuple(row for one in found.values() for row in one.rows)
        return Report(rows, untried_of(references), uncompared_of(references, manifest.contract))


def _verify_methods(
    folder: Path, against: str | Path | None, target: Sequence[str], options: Options, progress: Progress
) -> Report:
    options.require_original(None)
    methods = open_methods(folder).methods
    if against is not None:
        raise UsageError(
            f"an original model belongs to one method, but the bundle has the methods {', '.join(methods)}",
            where="--against",
            fix=f"verify the bundle of one method, such as {method_folder(folder, methods[0])}",
        )
    rows: list[OutputRow] = []
    untried: dict[str, str] = {}
    for name in methods:
        report = verify(method_folder(folder, name), target=target, progress=progress)
        rows += [replace(row, target=f"{name}/{row.target}") for row in report.rows]
        untried |= {f"{name}: {case}": why for case, why in report.untried.items()}
    return Report(tuple(rows), untried)


def verify_runtimes(
    bundle: str | Path,
    *,
    against: str | Path | None = None,
    target: Sequence[str] = (),
    options: Options | None = None,
    build_runtime: bool = False,
    progress: Progress = silent,
) -> Matrix:
    """Verifies a bundle's parity in every runtime of this machine: Python and C++, with and without CUDA graphs.

    Args:
        bundle: the folder of the bundle.
        against: the path of the original model, as in `verify`.
        target: the names of the targets to verify, as in `verify`.
        options: how to read `against`, as in `verify`.
        build_runtime: whether to build fuseconv-run if it is not found. The build is kept for later calls.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        A matrix with one cell per target and runtime. A cell contains its rows, or the reason why it cannot run.

    Raises:
        FuseconvError: see `verify`; or fuseconv-run fails to build.
    """
    executable = cpp.find()
    if executable is None and build_runtime:
        with progress(f"build {cpp.NAME}"):
            executable = cpp.build()
    folder = Path(bundle).absolute()
    manifest = open_bundle(folder)
    names = choose_targets(manifest, target, folder) if target else tuple(TARGETS)
    program, inputs = _original(manifest, against, options or Options(), progress)
    return matrix.verify_runtimes(
        folder, manifest, targets=names, against=program, inputs=inputs, program=executable, progress=progress
    )


def _original(
    manifest: Manifest, against: str | Path | None, options: Options, progress: Progress
) -> tuple[Program | None, tuple[torch.Tensor, ...] | None]:
    """Returns the original program or None, and the inputs in `options.inputs_file` or None if it is not set."""
    options.require_original(against)
    if against is None:
        return None, None
    _, program = read_program(against, verification.as_converted(manifest, against, options), progress)
    return program, program.examples if options.inputs_file is not None else None
