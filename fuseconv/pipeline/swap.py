"""Replaces the weights of a bundle: keeps the program and plan, recomputes the constants, and verifies parity again."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.files import LIBRARIES, MANIFEST, measure_file
from fuseconv.bundle.links import link
from fuseconv.bundle.manifest import ONNX, PLAN, Manifest, check_outside, check_replaceable, open_bundle, seal
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.bundle.packages import Package
from fuseconv.bundle.replaced import unchanged
from fuseconv.bundle.staging import staged
from fuseconv.contract.dtypes import DTYPES
from fuseconv.errors import ParityError, UnsupportedError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan, read_plan
from fuseconv.ops import library
from fuseconv.parity import process
from fuseconv.parity.process import Verified
from fuseconv.parity.reference import (
    REFERENCE,
    read_reference,
    refer,
    tried_of,
    uncompared_of,
    untried_of,
    write_reference,
)
from fuseconv.parity.report import OutputRow, Report
from fuseconv.parity.verification import with_limits
from fuseconv.pipeline.assembly import Progress, Written, remove_target, write_target
from fuseconv.pipeline.join import join
from fuseconv.pipeline.original import given, read_original, write_original
from fuseconv.pipeline.pack_ops import load_pack_ops
from fuseconv.pipeline.read import silent
from fuseconv.pipeline.renewed import OldWeights
from fuseconv.pipeline.verify import verify
from fuseconv.program.captured import Program
from fuseconv.provenance.sbom import SBOM, write_sbom
from fuseconv.runtime.environment import environment
from fuseconv.runtime.model import load_libraries
from fuseconv.runtime.packages import fitting, why_none
from fuseconv.sources.adapters import merged
from fuseconv.sources.new_weights import fitted, read_weights
from fuseconv.sources.subject import digest
from fuseconv.targets import onnx, spec_of
from fuseconv.untrusted import hub
from fuseconv.weights.store import Store, weights_of
from fuseconv.weights.table import STORE, TABLE, Table, set_table

_ONNX_DATA = f"{onnx.SPEC.artifact}.data"
"""The path of the weight file of ONNX models that do not refer to the weight store, relative to the bundle's folder."""


@dataclass(frozen=True)
class Swapped:
    """The result of replacing the weights of a bundle.

    Attributes:
        bundle: the folder of the bundle.
        kept: the names of the targets whose files were taken from the old bundle unchanged.
        written: the names of the targets that were written again.
        left_out: the architectures of the packages that the new bundle lacks, because they do not run here, so that
            their parity cannot be proved, or because their code contains an old weight. `fuseconv add` adds them.
        report: the parity of every target, case and output.
    """

    bundle: Path
    kept: tuple[str, ...]
    written: tuple[str, ...]
    left_out: tuple[str, ...]
    report: Report


def swap(
    bundle: str | Path,
    weights: str | Path,
    *,
    adapter: str | Path | None = None,
    output: str | Path | None = None,
    rules: str | Path | None = None,
    trust: Collection[str] = (),
    progress: Progress = silent,
) -> Swapped:
    """Replaces a bundle's weights with further-trained weights of the same model, without converting the model again.

    Merged, folded and transposed weights are recomputed with the plan. Artifacts that only refer to the weight store
    stay as they are. ONNX models, which contain small constants, and artifacts that contain their weights are written
    again. Every target is then compared with the original program, and with float64, on the new weights.

    The new bundle is not signed, and the signature of the old bundle does not cover it.

    Args:
        bundle: the folder of the bundle. In a bundle with several methods, every method gets the weights.
        weights: the path of a file with a state dict of the model, or of a folder of safetensors files, or
            `hf://OWNER/NAME@REVISION`. Names, shapes and dtypes must equal the model's, except for a prefix that the
            names of all the model's weights share.
        adapter: the folder of a low-rank adapter in the PEFT format, which is merged into the weights. Default: none.
        output: the folder of the new bundle. Default: the bundle is replaced atomically.
        rules: the path of the rules with which the model was converted, if the bundle calls ops of a rule pack.
            Default: the bundle calls only ops of fuseconv.
        trust: the kinds of code that may run. If the bundle calls ops of a rule pack, it must contain `code`.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The targets that were kept and written, and the parity report.

    Raises:
        UsageError: a file does not exist, or the output is inside the bundle.
        RefusedError: the bundle or a file is damaged, the weights do not belong to the model, or the bundle calls ops
            of a rule pack, whose code is not trusted.
        RuleError: the rules are invalid, or their Python files fail.
        UnsupportedError: the bundle was written without its original program, a target does not run on this machine,
            the adapter is of another kind, or the bundle calls ops of a rule pack that `rules` does not load.
        ParityError: a target's outputs differ from the original program's on the new weights. Nothing is written.
        FileError: the bundle cannot be written, or another process has replaced it in the meantime.
    """
    folder, path = Path(bundle).resolve(), Path(weights)
    check = unchanged(folder, check_replaceable)  # before the bundle is read
    if has_methods(folder):
        return _swap_methods(folder, path, adapter, output, rules, trust, progress)
    manifest = open_bundle(folder)
    target = Path(output) if output is not None else folder
    check_outside(target, folder)
    op_files = load_pack_ops(folder, manifest, rules, trust)
    process.prepare()
    with progress("read"):
        exported, tied = read_original(folder, manifest)
        on_hub = hub.reference(path)
        snapshot = None if on_hub is None else hub.download(on_hub)
        tensors = read_weights(path if snapshot is None else snapshot.folder)
        if adapter is not None:
            tensors = merged(tensors, Path(adapter))
        dtype = manifest.source.dtype
        cast = None if dtype is None else getattr(torch, DTYPES[dtype].removeprefix("torch."))
        found = fitted(tensors, weights_of(exported), tied, path, cast)
        found = {name: tensor.to(manifest.contract.device) for name, tensor in found.items()}
        for one in manifest.targets:
            _check_runs_here(folder, manifest.packages_of(one)[0])
            load_libraries(folder, manifest, one)
    origin = (None, None) if snapshot is None else (snapshot.repository, snapshot.commit)
    changed = {"sha256": digest(path), "repository": origin[0], "commit": origin[1]}
    source = manifest.source.model_copy(update=changed)
    old = read_reference(folder / REFERENCE, manifest.contract)
    program = Program(given(exported, found), manifest.contract, tried_of(old)[0].case.inputs)
    with progress("reference"):
        references = refer(program, [reference.case for reference in old])
    plan = read_plan(folder / PLAN).untested()
    with staged(target, check) as staging:
        link(folder, staging)
        check(folder)
        for name in (MANIFEST, REFERENCE, PLAN):
            (staging / name).unlink()
        (staging / PLAN).write_text(plan.to_json(), encoding="utf-8")
        write_reference(staging / REFERENCE, references, manifest.contract)
        new = _Swap(folder, staging, manifest, program, plan, tied, op_files)
        new.write(progress)
        _renew_sbom(staging, manifest)
        made_here = {"environment": environment(manifest.contract.device)} if new.written else {}
        described = new.described().model_copy(update={"source": source, "files": {}, **made_here})
        sealed = seal(staging, described.updating_packages([]))
        with progress("verify"):
            results = process.verify(staging, sorted(manifest.targets), hashed=True)
        rows = tuple(with_limits(_rows(results), manifest))
        report = Report(rows, untried_of(references), uncompared_of(references, manifest.contract))
        if not report.ok:
            raise _differs(report, path)
        proved = described.model_copy(update={"parity": report.to_json()["rows"]})
        packages: list[Package] = []
        for package in new.packages:
            seal(staging, described.only(package), sealed.files)
            name = f"{package.target} for {package.environment.architecture}"
            with progress(f"verify {name}"):
                own_rows = with_limits(_rows(process.verify(staging, [package.target], hashed=True)), manifest)
            own = Report(tuple(own_rows))
            if not own.ok:
                raise _differs(own, path)
            packages.append(package.model_copy(update={"parity": own.to_json()["rows"]}))
            report = replace(report, rows=(*report.rows, *(replace(row, target=name) for row in own_rows)))
        seal(staging, proved.updating_packages(packages), sealed.files)
    kept = tuple(name for name in sorted(manifest.targets) if name not in new.written)
    left_out = tuple(one.environment.architecture for one in manifest.packages if one not in new.packages)
    return Swapped(target, kept, tuple(sorted(new.written)), left_out, report)


def _swap_methods(
    folder: Path,
    weights: Path,
    adapter: str | Path | None,
    output: str | Path | None,
    rules: str | Path | None,
    trust: Collection[str],
    progress: Progress,
) -> Swapped:
    """Replaces the weights of every method, joins the methods again, and returns the new bundle.

    A target is named `METHOD/TARGET`.
    """
    check = unchanged(folder, check_replaceable)
    manifest = open_methods(folder)
    target = Path(output) if output is not None else folder
    check_outside(target, folder)
    kept: list[str] = []
    written: list[str] = []
    left_out: list[str] = []
    with staged(target, check) as staging:
        for name in manifest.methods:
            new = method_folder(staging, name)
            how: dict[str, Any] = {"rules": rules, "trust": trust, "progress": progress}
            done = swap(method_folder(folder, name), weights, adapter=adapter, output=new, **how)
            kept += [f"{name}/{one}" for one in done.kept]
            written += [f"{name}/{one}" for one in done.written]
            left_out += done.left_out
        check(folder)
        with progress("join weights"):
            join(staging, manifest.methods, manifest.generation)
        report = verify(staging, progress=progress)
        if not report.ok:
            raise _differs(report, weights)
    return Swapped(target, tuple(sorted(kept)), tuple(sorted(written)), tuple(dict.fromkeys(left_out)), report)


@dataclass
class _Swap:
    """A new bundle that is being filled. Its folder first contains links to the files of the old bundle."""

    old: Path
    new: Path
    manifest: Manifest
    program: Program
    plan: Plan
    names: Collection[str]
    op_files: tuple[Path, ...]

    def __post_init__(self) -> None:
        self.written: dict[str, Written] = {}
        self.packages: list[Package] = []
        """The packages that stay in the new bundle, beside the first one of each target."""

    def write(self, progress: Progress) -> None:
        """Writes the weight store, the original program, and every target whose files the new weights change."""
        with progress("rewrite"):
            fused = rewrite(self.program, self.plan)
        with progress("write weights"):
            (self.new / STORE).unlink(missing_ok=True)
            store = Store.create(self.new, weights_of(fused.exported))
            fused = replace(fused, exported=store.attached(fused.exported))
            shutil.rmtree(self.new / "original")
            write_original(self.program.exported, self.new, store, self.names)
        old = OldWeights.of(self.old, self.manifest)
        plans = {name: self.plan.of(name) for name in sorted(self.manifest.targets)}
        programs = {name: fused if own == self.plan else rewrite(self.program, own) for name, own in plans.items()}
        paths = self.manifest.targets
        tables = {name: old.renewed(name, paths[name], one, store) for name, one in programs.items()}
        for name, table in tables.items():
            if table is not None:
                self._refer(Path(paths[name]), table)
        for one in self.manifest.packages:
            table = old.renewed(one.target, one.path, programs[one.target], store) if _runs_here(one) else None
            if table is None:
                shutil.rmtree((self.new / one.path).parent)
            else:
                self._refer(Path(one.path), table)
                self.packages.append(one)
        changed = [name for name, table in tables.items() if table is None]
        for name in changed:  # before any target is written, because the ONNX targets share a file
            self._remove(name)
        for name in changed:
            with progress(f"write {name}"):
                given = None if self._contains_weights(name) else store
                self.written[name] = write_target(name, programs[name], self.new, self.op_files, given)

    def described(self) -> Manifest:
        """Returns the manifest of the old bundle, with the state inputs into which the new artifacts write."""
        now = {name: list(one.in_place) for name, one in self.written.items()}
        return self.manifest.updating_in_place({**self.manifest.in_place, **now})

    def _refer(self, artifact: Path, table: Table) -> None:
        """Writes the table of an artifact that stays."""
        (self.new / artifact).with_name(
            TABLE
        ).unlink()  # writing through a link would change the file of the old bundle
        set_table(self.new / artifact, table)

    def _contains_weights(self, name: str) -> bool:
        if spec_of(name).runtime == "onnxruntime":
            return (self.old / _ONNX_DATA).is_file()
        return Table.of(self.old / self.manifest.targets[name]) is None

    def _remove(self, name: str) -> None:
        path = Path(self.manifest.targets[name])
        beside = (path.parent,) if path.parent != Path() else (ONNX, path, _ONNX_DATA)
        files = [file for one in beside for file in [self.new / one, *(self.new / one).rglob("*")] if file.exists()]
        names = tuple(file.relative_to(self.new).as_posix() for file in files)
        remove_target(self.new, Written(name, path.as_posix(), 0, 0, names))


def _runs_here(package: Package) -> bool:
    """Returns whether this machine runs a package, so that its parity can be proved."""
    return fitting([package], _machine(package)) is not None


def _check_runs_here(folder: Path, first: Package) -> None:
    """Checks that this machine runs the first package of a target. Raises UnsupportedError if not."""
    if not _runs_here(first):
        raise UnsupportedError(
            f"new weights cannot be verified here: {why_none([first], _machine(first))}",
            where=str(folder),
            fix="swap the weights on a machine like the one that converted the model",
        )


def _machine(package: Package) -> Environment:
    """Returns this machine, with its GPU if the package is for a GPU."""
    return environment("cpu" if package.environment.gpu is None else "cuda")


def _renew_sbom(bundle: Path, manifest: Manifest) -> None:
    """Writes the SBOM again if a library in the new bundle is missing from the old bundle or differs from it."""
    files = {f"{LIBRARIES}/{path.name}": measure_file(path) for path in (bundle / LIBRARIES).iterdir()}
    if any(manifest.files.get(name) != file for name, file in files.items()):
        (bundle / SBOM).unlink(missing_ok=True)
        write_sbom(bundle, library.FOLDER)


def _rows(results: Mapping[str, Verified]) -> list[OutputRow]:
    """Returns the rows of all targets, sorted by the name of the target.

    Raises:
        FuseconvError: a target does not run.
    """
    for name in sorted(results):
        if (error := results[name].error) is not None:
            raise error
    return [row for name in sorted(results) for row in results[name].rows]


def _differs(report: Report, path: Path) -> ParityError:
    row = next(row for row in report.rows if not row.ok and not row.limit)
    return ParityError(
        f"with the new weights, output {row.output} of the target {row.target} differs in case {row.case}: "
        f"{row.row.reason}",
        where=str(path),
        fix="convert the model with these weights: a rule may depend on the values of the old weights",
    )
