"""Adds the AOTInductor package of this machine to a bundle, without converting the model again.

The bundle contains everything that this needs: the captured program, the plan by which it is fused, the weights of the
fused program, and the cases with which parity is proved.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.links import link
from fuseconv.bundle.manifest import Manifest, check_replaceable, open_bundle, seal
from fuseconv.bundle.methods import has_methods, method_folder, open_methods, seal_methods
from fuseconv.bundle.packages import Package, package_path
from fuseconv.bundle.replaced import unchanged
from fuseconv.bundle.staging import staged
from fuseconv.errors import ParityError, UnsupportedError, UsageError
from fuseconv.parity import process
from fuseconv.parity.reference import REFERENCE, read_reference, untried_of
from fuseconv.parity.report import Report
from fuseconv.parity.verification import with_limits
from fuseconv.pipeline.assembly import Progress, write_target
from fuseconv.pipeline.pack_ops import load_pack_ops
from fuseconv.pipeline.read import silent
from fuseconv.pipeline.stored_program import stored_program
from fuseconv.runtime.environment import architecture_problems, environment
from fuseconv.runtime.model import check_device
from fuseconv.runtime.packages import fitting
from fuseconv.targets import aoti
from fuseconv.weights.table import Table, set_table

_TARGET = aoti.SPEC.name


@dataclass(frozen=True)
class Added:
    """The result of adding a package to a bundle.

    Attributes:
        bundle: the folder of the bundle.
        architecture: the architecture of the package that this machine runs, such as `x86_64-avx2` or `sm_90`.
        architectures: the architectures of all packages of the bundle, the first one first.
        report: the parity of the added package. None if the bundle already contained a package for this machine; then
            the bundle is unchanged.
    """

    bundle: Path
    architecture: str
    architectures: tuple[str, ...]
    report: Report | None


def add(
    bundle: str | Path,
    *,
    rules: str | Path | None = None,
    trust: Collection[str] = (),
    progress: Progress = silent,
) -> Added:
    """Adds the AOTInductor package of this machine to a bundle, so that the bundle runs here and where it ran before.

    A package runs only on GPUs of the architecture, or on CPUs with the vector instructions, for which it was compiled.
    `load` picks the package of its machine. The new package is compiled from the bundle's own program and refers to
    the bundle's weights. Its outputs are compared with the original program and with float64 before it is kept.

    Args:
        bundle: the folder of the bundle, which is replaced atomically. In a bundle with several methods, every method
            gets a package. The new bundle is not signed.
        rules: the path of the rules with which the model was converted, if the bundle calls ops of a rule pack. Their
            Python files tell the compiler what the ops return. Default: the bundle calls only ops of fuseconv.
        trust: the kinds of code that may run. If the bundle calls ops of a rule pack, it must contain `code`.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The architectures of the bundle's packages, and the parity report of the new package. In a bundle with several
        methods, a target of a method is named `METHOD/TARGET`.

    Raises:
        UsageError: the bundle does not exist, or does not contain the target aoti.
        RefusedError: the bundle is damaged, or the bundle calls ops of a rule pack, whose code is not trusted.
        RuleError: the rules are invalid, or their Python files fail.
        UnsupportedError: the bundle is for another kind of machine, calls ops of a rule pack that `rules` does not
            load, was written without its original program, or contains some weights only in a form from which the
            program cannot be made; or a compiler is missing.
        UpstreamError: no CUDA device is available, or the compiler failed.
        ParityError: the outputs of the new package differ from the original program's. The bundle is unchanged.
        FileError: the bundle cannot be written.

    Examples:
        >>> fuseconv.add("mlp.fuseconv")
        Traceback (most recent call last):
        fuseconv.errors.UsageError: the bundle has no target aoti
          at: mlp.fuseconv
          fix: convert the model with --target aoti
    """
    folder = Path(bundle)
    check = unchanged(folder, check_replaceable)  # before the bundle is read
    whole = open_methods(folder) if has_methods(folder) else None
    names = [Path()] if whole is None else [method_folder(Path(), name) for name in whole.methods]
    manifests = {name: open_bundle(folder / name) for name in names}
    lacking = {name: one for name, one in manifests.items() if not _has_package(folder / name, one)}
    if not lacking:
        return _added(folder, manifests, None)
    loaded = {name: load_pack_ops(folder / name, manifest, rules, trust) for name, manifest in lacking.items()}
    process.prepare()
    folder = folder.resolve()  # a symbolic link to the folder stays a link
    reports: list[Report] = []
    with staged(folder, check) as staging:
        link(folder, staging)
        for name, manifest in lacking.items():
            (staging / name / MANIFEST).unlink()  # writing through a link would change the file of the old bundle
            manifests[name], report = _add(folder / name, manifest, staging / name, loaded[name], progress)
            reports.append(_named(name, report))
        if whole is not None:
            (staging / MANIFEST).unlink()
            seal_methods(staging, whole)
    rows = tuple(row for one in reports for row in one.rows)
    return _added(folder, manifests, Report(rows, {case: why for one in reports for case, why in one.untried.items()}))


def _added(folder: Path, manifests: dict[Path, Manifest], report: Report | None) -> Added:
    manifest = next(iter(manifests.values()))  # every method has packages for the same machines
    packages = [one.environment.architecture for one in manifest.packages_of(_TARGET)]
    here = environment(manifest.contract.device).architecture
    return Added(folder, here, tuple(dict.fromkeys(packages)), report)


def _has_package(folder: Path, manifest: Manifest) -> bool:
    """Checks that a package for this machine can be added, and returns whether the bundle already contains one.

    Raises:
        UsageError: the bundle does not contain the target.
        UnsupportedError: the bundle is for another kind of machine.
        UpstreamError: the bundle requires a CUDA device and there is none.
    """
    if _TARGET not in manifest.targets:
        what, fix = f"the bundle has no target {_TARGET}", f"convert the model with --target {_TARGET}"
        raise UsageError(what, where=str(folder), fix=fix)
    check_device(manifest.contract.device, folder)
    here, made = environment(manifest.contract.device), manifest.environment
    if made.machine != here.machine:
        problem = architecture_problems(made, here, _TARGET)[0]
        raise UnsupportedError(
            f"the op libraries of the bundle were built for {problem}",
            where=str(folder),
            fix="convert the model on this machine",
        )
    found = fitting(manifest.packages_of(_TARGET), here)
    return found is not None and found.environment.architecture == here.architecture


def _add(
    old: Path, manifest: Manifest, folder: Path, op_files: tuple[Path, ...], progress: Progress
) -> tuple[Manifest, Report]:
    """Compiles and verifies a package in a copy of a bundle or method that has no manifest yet, and seals the copy."""
    here = environment(manifest.contract.device)
    path = package_path(aoti.SPEC.artifact, here.architecture)
    shutil.rmtree(folder / path.parent, ignore_errors=True)  # a package that a newer torch has compiled
    with progress("rewrite"):
        program, store, code = stored_program(old, manifest, _TARGET, folder)
    with progress(f"write {_TARGET}"):
        write_target(_TARGET, program, folder, op_files, store, path)
        if (table := Table.of(folder / path)) is not None:
            set_table(folder / path, replace(table, program=code))
    package = Package(target=_TARGET, path=path.as_posix(), environment=here, parity=[])
    others = [one for one in manifest.packages if one.path != package.path]
    known = {name: file for name, file in manifest.files.items() if not Path(name).is_relative_to(path.parent)}
    sealed = seal(folder, manifest.updating_packages([*others, package]).only(package), known)
    with progress("verify"):
        found = process.verify(folder, [_TARGET], hashed=True)[_TARGET]
    if found.error is not None:
        raise found.error
    untried = untried_of(read_reference(folder / REFERENCE, manifest.contract))
    report = Report(tuple(with_limits(found.rows, manifest)), untried)
    if not report.ok:
        row = next(row for row in report.rows if not row.ok and not row.limit)
        raise ParityError(
            f"output {row.output} of the package for {here.architecture} differs in case {row.case}: {row.row.reason}",
            where=f"the target {_TARGET}",
            fix="load another target of the bundle on this machine, or convert the model here",
        )
    proved = package.model_copy(update={"parity": report.to_json()["rows"]})
    return seal(folder, manifest.updating_packages([*others, proved]), sealed.files), report


def _named(method: Path, report: Report) -> Report:
    """Returns the report of a method with targets named `METHOD/TARGET`, and any other report as it is."""
    if method == Path():
        return report
    rows = tuple(replace(row, target=f"{method.name}/{row.target}") for row in report.rows)
    return Report(rows, {f"{method.name}: {case}": why for case, why in report.untried.items()})
