"""Writes the contents of a bundle: the op libraries, one artifact per target, and the manifest."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from fuseconv import targets
from fuseconv.bundle.files import LIBRARIES
from fuseconv.bundle.invocation import Invocation
from fuseconv.bundle.manifest import Manifest, RuleUse, Source
from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.errors import FuseconvError, UnsupportedError, UpstreamError, UsageError
from fuseconv.matching.steps import Plan
from fuseconv.numerics.tolerance import table
from fuseconv.ops import library
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import text_of
from fuseconv.provenance.sbom import write_sbom
from fuseconv.rulebook.packs import op_files
from fuseconv.rulebook.rule import Rule
from fuseconv.runtime.environment import environment
from fuseconv.sources import Subject
from fuseconv.targets.in_place import updated_in_place
from fuseconv.version import __version__
from fuseconv.weights.store import Store
from fuseconv.weights.table import Table, set_table

Progress = Callable[[str], AbstractContextManager[None]]
"""Called with the name of a step. Returns a context manager in which the step runs."""


@dataclass(frozen=True)
class Written:
    """A written artifact and its files.

    Attributes:
        target: the name of the target for which the artifact was written.
        path: the path of the artifact, relative to the bundle's folder.
        seconds: the time that writing the artifact took, in seconds.
        size: the total size of the files that the target adds to the bundle, in bytes.
        files: the paths of the files and folders that the target adds, relative to the bundle's folder.
        in_place: the names of the state inputs into which the artifact writes the next state.
    """

    target: str
    path: str
    seconds: float
    size: int
    files: tuple[str, ...] = ()
    in_place: tuple[str, ...] = ()


def target_names(wanted: Sequence[str], device: str = "cpu") -> tuple[str, ...]:
    """Validates target names, and returns the names without duplicates.

    If `wanted` is empty, returns all targets, without onnx-plugin if its library is not built for the device.

    Raises:
        UsageError: a target does not exist.
    """
    for name in wanted:
        if name not in targets.TARGETS:
            raise UsageError(
                f"unknown target {name}",
                where="--target",
                fix=f"use one of {', '.join(sorted(targets.TARGETS))}; to use several, repeat --target",
            )
    is_built = (library.FOLDER / library.PLUGINS[device]).is_file()
    every = sorted(name for name, target in targets.TARGETS.items() if is_built or not target.SPEC.plugin)
    return tuple(dict.fromkeys(wanted)) or tuple(every)


def copy_libraries(staging: Path, device: str, others: Sequence[Path] = ()) -> tuple[str, ...]:
    """Copies the op libraries for a device, and the libraries in `others`, into a bundle.

    Returns the paths of the copies, relative to the bundle's folder, in the order in which to load the libraries.

    Raises:
        UsageError: two libraries have the same name.
    """
    folder = staging / LIBRARIES
    folder.mkdir()
    copies = []
    for path in (*library.library_paths(device), *others):
        copy = folder / path.name
        if copy.exists():
            raise UsageError(f"two op libraries are named {path.name}", where=str(path), fix="rename one of them")
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o755)
        copies.append(f"{LIBRARIES}/{path.name}")
    return tuple(copies)


def write_target(
    name: str,
    fused: Program,
    staging: Path,
    op_files: tuple[Path, ...] = (),
    store: Store | None = None,
    artifact: Path | None = None,
) -> Written:
    """Writes the artifact of a target, and returns its description. After a failure, removes the files written so far.

    The arguments after `staging` are those of `targets.Context`.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: the exporter or compiler failed.
        FileError: a file cannot be written.
    """
    target = targets.TARGETS[name]
    start, before = time.monotonic(), set(staging.rglob("*"))
    try:
        with tempfile.TemporaryDirectory() as scratch:
            check_expressible(name, fused)
            artifact = target.write(fused, staging, targets.Context(Path(scratch), op_files, store, artifact))
            if (weights := Table.of(staging / artifact)) is not None:
                set_table(staging / artifact, replace(weights, program=program_hash(fused)))
    except Exception as error:
        _remove(set(staging.rglob("*")) - before)
        if isinstance(error, FuseconvError | OSError):
            raise
        raise _unforeseen(name, error) from error
    seconds, made = time.monotonic() - start, set(staging.rglob("*")) - before
    size = sum(path.stat().st_size for path in made if path.is_file())
    files = tuple(sorted(path.relative_to(staging).as_posix() for path in made))
    updated = updated_in_place(fused) if target.SPEC.in_place else ()
    return Written(name, artifact.as_posix(), round(seconds, 3), size, files, updated)


def check_expressible(name: str, fused: Program) -> None:
    """Checks, before anything is written, that a target can express a fused program as far as is known.

    Raises:
        UnsupportedError: the target cannot express the program.
    """
    if reason := targets.TARGETS[name].unsupported(fused):
        raise UnsupportedError(reason, where=f"the target {name}", fix=f"leave the target {name} out")


def program_hash(program: Program) -> str:
    """Returns the SHA-256 of a program's code, without its weights. Programs with equal code have equal hashes."""
    return sha256(text_of(program.exported).encode()).hexdigest()


def remove_target(staging: Path, written: Written) -> None:
    """Removes the files that a target added, and the folders that are empty afterwards."""
    _remove({staging / name for name in written.files})


def _remove(paths: set[Path]) -> None:
    for path in sorted(paths, reverse=True):
        if not path.is_dir():
            path.unlink()
        elif not any(path.iterdir()):
            path.rmdir()


_OP = re.compile(r"\b(?:torch\.ops\.)?(?:aten|fuseconv|prims)(?:\.|::)\w+(?:\.\w+)?")


def _unforeseen(name: str, error: Exception) -> UpstreamError:
    """Returns the error for an unexpected exception of an exporter. Names the op if an exception message does."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    said = next((line.strip() for one in reversed(chain) for line in str(one).splitlines() if line.strip()), "")
    ops = (found[0] for one in reversed(chain) if (found := _OP.search(str(one))))
    kind, op = type(chain[-1]).__name__, next(ops, "")
    at = f" at {op}" if op and op not in said else ""
    return UpstreamError(
        f"the exporter for the target {name} failed{at}: {kind}: {said}",
        where=f"the target {name}",
        fix=f"leave the target {name} out",
    )


@dataclass(frozen=True)
class Assembly:
    """The parts that the final bundle and the temporary bundles of a conversion share.

    Temporary bundles are written to find the cause of a failure or to measure times.

    Attributes:
        program: the captured program.
        source: where the program comes from, for the manifest.
        hashes: the SHA-256 of each rule, by the name of the rule.
        libraries: the paths of the op libraries of rule packs.
        op_files: the paths of the Python files that register the ops of rule packs.
        self_contained: the names of the targets whose artifacts contain their weights.
        invocation: how the conversion was called, for the manifest. None if this is not recorded.
    """

    program: Program
    source: Source
    hashes: Mapping[str, str]
    libraries: Sequence[Path] = ()
    op_files: tuple[Path, ...] = ()
    self_contained: frozenset[str] = frozenset()
    invocation: Invocation | None = None

    @staticmethod
    def of(
        subject: Subject,
        program: Program,
        known: Sequence[Rule],
        libraries: Sequence[Path],
        dtype: str | None,
        self_contained: Collection[str] = (),
        invocation: Invocation | None = None,
    ) -> Assembly:
        """Returns the parts that all bundles of one conversion share.

        Args:
            subject: the model as read from disk, with its source.
            program: the captured program, to which the rules are applied.
            known: the rules of the conversion, whose hashes the manifest records.
            libraries: the paths of the op libraries of rule packs.
            dtype: the dtype to which the model was cast. None if it was not cast.
            self_contained: the names of the targets whose artifacts must contain their weights. The artifacts of other
                targets in the same folder then contain their weights too.
            invocation: how the conversion was called. None not to record this.
        """
        original = None if program.original is None else program.original.kind
        from_hub = subject.snapshot
        source = Source(
            form=subject.source,
            sha256=subject.sha256,
            dtype=dtype,
            original=original,
            repository=None if from_hub is None else from_hub.repository,
            commit=None if from_hub is None else from_hub.commit,
        )
        hashes, contained = {rule.name: rule.sha256 for rule in known}, frozenset(targets.beside(self_contained))
        return Assembly(program, source, hashes, libraries, op_files(known), contained, invocation)

    def write(self, name: str, fused: Program, folder: Path, store: Store | None = None) -> Written:
        """Writes the artifact of a target into the folder of a bundle. Raises the errors of `write_target`.

        Args:
            name: the name of the target to write.
            fused: the fused program that the artifact computes.
            folder: the bundle's folder, into which the artifact is written.
            store: the weight store that the artifact refers to. None for an artifact that contains its weights. A
                target in `self_contained` ignores the store.
        """
        return write_target(name, fused, folder, self.op_files, None if name in self.self_contained else store)

    def copy_libraries(self, folder: Path) -> tuple[str, ...]:
        """Copies the op libraries into the folder of a bundle. Returns the copies' relative paths in loading order."""
        return copy_libraries(folder, self.program.contract.device, self.libraries)

    def write_sbom(self, folder: Path) -> None:
        """Writes the SBOM of the libraries in the `lib` folder of a bundle. Raises the errors of `sbom.write_sbom`."""
        write_sbom(folder, library.FOLDER)

    def describe(self, plan: Plan, written: Sequence[Written], libraries: Sequence[str]) -> Manifest:
        """Returns the manifest of an unverified bundle. The manifest contains no parity rows and no file hashes yet."""
        contract = self.program.contract
        manifest = Manifest(
            fuseconv=__version__,
            source=self.source,
            contract=contract,
            dtype=_dtype(self.program),
            targets={one.target: one.path for one in written},
            rules=[
                RuleUse(name=name, sha256=self.hashes.get(name, ""), count=count)
                for name, count in plan.counts([one.target for one in written]).items()
            ],
            libraries=list(libraries),
            environment=environment(contract.device),
            tolerances=table(),
            parity=[],
            mismatch=False,
            invocation=self.invocation,
        )
        return manifest.updating_in_place({one.target: one.in_place for one in written})


def _dtype(program: Program) -> str:
    """Returns the floating dtype with the most weight elements, or `f32` for a model without floating weights."""
    counts: dict[str, int] = {}
    for tensor in program.exported.state_dict.values():
        if tensor.is_floating_point():
            name = SHORT_DTYPES[str(tensor.dtype)]
            counts[name] = counts.get(name, 0) + tensor.numel()
    return max(counts, key=lambda name: counts[name], default="f32")
