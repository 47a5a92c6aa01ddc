"""Filling a bundle's folder: op libraries, one artifact a target, the manifest."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import fuseconv
from fuseconv import targets
from fuseconv.bundle import Manifest, RuleUse, Source
from fuseconv.capture import Program
from fuseconv.contract import SHORT_DTYPES
from fuseconv.errors import UnsupportedError, UsageError
from fuseconv.matching.steps import Plan
from fuseconv.ops import library
from fuseconv.rulebook.rule import Rule
from fuseconv.runtime import environment
from fuseconv.sources import Subject
from fuseconv.tolerance import table

Progress = Callable[[str], AbstractContextManager[None]]
"""Called with the name of a step; the step runs inside the context."""

LIBRARIES = "lib"


@dataclass(frozen=True)
class Written:
    """One artifact.

    Attributes:
        target: its target.
        path: relative to the bundle.
        seconds: what writing it took.
        size: of everything the target wrote, in bytes.
    """

    target: str
    path: str
    seconds: float
    size: int


def target_names(wanted: Sequence[str], device: str = "cpu") -> tuple[str, ...]:
    """Returns the targets asked for; when none is, all, but onnx-plugin only where its library is built for the device.

    Raises:
        UsageError: there is no such target.
    """
    for name in wanted:
        if name not in targets.TARGETS:
            raise UsageError(
                f"there is no target {name}",
                where="--target",
                fix=f"use one of {', '.join(targets.TARGETS)}; for several, give --target to each",
            )
    is_built = (library.FOLDER / library.PLUGINS[device]).is_file()
    every = (name for name in targets.TARGETS if is_built or name != targets.onnx_plugin.NAME)
    return tuple(dict.fromkeys(wanted)) or tuple(every)


def copy_libraries(staging: Path, device: str, others: Sequence[Path] = ()) -> tuple[str, ...]:
    """Copies the op libraries for a device, and others, into the bundle; returns their paths in the order to load them.

    Raises:
        UsageError: two have one name.
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


def write_targets(
    fused: Program, staging: Path, names: Sequence[str], progress: Progress, op_files: tuple[Path, ...] = ()
) -> tuple[tuple[Written, ...], dict[str, str]]:
    """Writes each target's artifact; a target that cannot express the program is left out, with its reason.

    Raises:
        UnsupportedError: no target can.
        UpstreamError: an exporter or a compiler failed.
        FileError: the disk failed.
    """
    written, skipped = [], {}
    for name in names:
        target = targets.TARGETS[name]
        with progress(f"write {name}"), tempfile.TemporaryDirectory() as scratch:
            start, before = time.monotonic(), set(staging.rglob("*"))
            try:
                if reason := target.unsupported(fused):
                    raise UnsupportedError(reason)
                artifact = target.write(fused, staging, targets.Context(Path(scratch), op_files))
            except UnsupportedError as error:
                skipped[name] = error.what
                for path in sorted(set(staging.rglob("*")) - before, reverse=True):  # what it wrote before it found out
                    path.rmdir() if path.is_dir() else path.unlink()
                continue
            seconds = time.monotonic() - start
        size = sum(path.stat().st_size for path in (staging / artifact).parent.rglob("*") if path.is_file())
        written.append(Written(name, artifact.as_posix(), round(seconds, 3), size))
    if not written:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise UnsupportedError(f"no target can express the model: {reasons}", where="--target")
    return tuple(written), skipped


def describe(
    subject: Subject,
    program: Program,
    chosen: Plan,
    known: Sequence[Rule],
    written: Sequence[Written],
    libraries: Sequence[str],
    dtype: str | None,
) -> Manifest:
    """Returns the manifest of a bundle that is not proved yet: parity and the hashes of files come later.

    `dtype` is what the subject was converted to as it was read, or None.
    """
    hashes = {rule.name: rule.sha256 for rule in known}
    return Manifest(
        fuseconv=fuseconv.__version__,
        source=Source(form=subject.source, sha256=subject.sha256, dtype=dtype),
        contract=program.contract,
        dtype=_dtype(program),
        targets={one.target: one.path for one in written},
        rules=[RuleUse(name=name, sha256=hashes.get(name, ""), count=count) for name, count in chosen.counts().items()],
        libraries=list(libraries),
        environment=environment(program.contract.device),
        tolerances=table(),
        parity=[],
        mismatch=False,
    )


def _dtype(program: Program) -> str:
    """The floating dtype that most weights have, by elements; `f32` for a model without any."""
    counts: dict[str, int] = {}
    for tensor in program.exported.state_dict.values():
        if tensor.is_floating_point():
            name = SHORT_DTYPES[str(tensor.dtype)]
            counts[name] = counts.get(name, 0) + tensor.numel()
    return max(counts, key=lambda name: counts[name], default="f32")
