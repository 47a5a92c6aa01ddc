"""Measures the tactics of a bundle on this machine, and stores the measurements in the bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.links import link
from fuseconv.bundle.manifest import Manifest, check_replaceable, open_bundle, read_manifest, seal
from fuseconv.bundle.staging import staged
from fuseconv.errors import FileError, UnsupportedError, UpstreamError
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.read import silent
from fuseconv.runtime import tactics
from fuseconv.runtime.choosing_targets import choose_target
from fuseconv.runtime.few_kernels import Problems
from fuseconv.runtime.model import check_device


@dataclass(frozen=True)
class Tuned:
    """The result of tuning a bundle.

    Attributes:
        measured: the measured time of each tactic, by problem and size.
        changed: the problems and sizes whose fastest tactic differs from the bundle's earlier measurements.
        ties: the entries of `changed` whose old and new tactics differ in time by no more than the noise.
    """

    measured: tactics.Measured
    changed: tuple[str, ...]
    ties: tuple[str, ...]

    @property
    def sizes(self) -> int:
        """The number of measured combinations of a problem and a size."""
        return sum(len(sizes) for sizes in self.measured.problems.values())

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON-serializable values."""
        return {
            "problems": self.measured.problems,
            "measured": self.sizes,
            "calls": dict(self.measured.calls),
            "left": dict(self.measured.left),
            "changed": list(self.changed),
            "ties": list(self.ties),
        }


def tune(
    bundle: str | Path,
    *,
    target: Sequence[str] = (),
    seconds: float = tactics.SECONDS,
    progress: Progress = silent,
) -> Tuned:
    """Measures the tactics of a bundle on this machine and stores them in its tuning.json.

    A tactic is one of the many backends, engines and tile shapes with which the op libraries for CUDA can compute a
    linear layer or a convolution. The fastest tactic depends on the GPU and on the size. Each target is called at sizes
    that cover the ranges of its inputs, and every problem that its ops encounter is timed. Measurements from other GPUs
    stay in the bundle.

    Args:
        bundle: the folder of the bundle, which is replaced atomically. A symbolic link to the folder stays a link.
        target: the names of the targets to call. Default: all targets of the bundle.
        seconds: the time limit for the calls of the first target, in seconds. The limit of every other target is half
            as long.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The measurements, and how they differ from the bundle's earlier measurements.

    Raises:
        UsageError: the bundle or a target does not exist.
        RefusedError: the bundle is damaged.
        UnsupportedError: no target has tactics. Either the bundle is for the CPU, or its targets do not call the ops of
            fuseconv.
        UpstreamError: there is no CUDA device, or a target does not run.
        FileError: the bundle cannot be written.

    Examples:
        >>> fuseconv.tune("mlp.fuseconv")
        Traceback (most recent call last):
        fuseconv.errors.UnsupportedError: there is nothing to measure: the bundle is for cpu, whose ops have one tactic
          at: mlp.fuseconv
          fix: tune a bundle that was converted with --device cuda
    """
    folder = Path(bundle)
    manifest = open_bundle(folder)
    names = [choose_target(manifest, name, folder) for name in target] or sorted(manifest.targets)
    if not any(tactics.has_tactics(manifest, name) for name in names):
        raise UnsupportedError(
            f"there is nothing to measure: {_without_tactics(manifest, names)}",
            where=str(folder),
            fix="tune a bundle that was converted with --device cuda",
        )
    check_device(manifest.contract.device, folder)
    folder = folder.resolve()
    _check_writable(folder)
    tactics.read(folder / tactics.FILE)
    with progress("tune"):
        measured = tactics.measure(folder, manifest, names, seconds=seconds)
    if measured.failures:
        name, reason = next(iter(measured.failures.items()))
        raise UpstreamError(
            f"the target {name} failed during the measurement: {reason}",
            where=str(folder),
            fix="run `fuseconv verify`, or leave the target out with --target",
        )
    with staged(folder, check_replaceable) as staging:
        link(folder, staging)
        current = read_manifest(staging)  # another process may have replaced the bundle in the meantime
        known = tactics.read(staging / tactics.FILE)
        for name in (tactics.FILE, MANIFEST):  # writing through the links would change the files of the old bundle
            (staging / name).unlink(missing_ok=True)
        tactics.write(staging / tactics.FILE, tactics.merged(known, measured.problems))
        others = {name: file for name, file in current.files.items() if name != tactics.FILE}
        seal(staging, current, others)
    changed, ties = _changes(known, measured.problems)
    return Tuned(measured, changed, ties)


def _without_tactics(manifest: Manifest, names: Sequence[str]) -> str:
    device = manifest.contract.device
    return (
        f"the bundle is for {device}, whose ops have one tactic"
        if device != "cuda"
        else f"{', '.join(names)} does not call ops of fuseconv"
    )


def _check_writable(folder: Path) -> None:
    """Checks that a bundle can be replaced and the old bundle removed. It is called before anything is measured.

    Raises:
        FileError: the parent folder of the bundle, the bundle, or a folder in it is read-only.
    """
    for path in (folder.parent, folder, *(path for path in folder.rglob("*") if path.is_dir())):
        if not os.access(path, os.W_OK | os.X_OK):
            raise FileError(
                "the bundle cannot be replaced, because a folder is read-only",
                where=str(path),
                fix="copy the bundle, and tune the copy",
            )


def _changes(old: Problems, new: Problems) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the problems and sizes whose fastest tactic changed, and which of these changes are within the noise."""
    changed, ties = [], []
    for family, sizes in new.items():
        for size, times in sizes.items():
            before = old.get(family, {}).get(size)
            if not before or (first := _fastest(before)) == (now := _fastest(times)):
                continue
            changed.append(f"{family} at {size}")
            if first in times and _within_noise(times[first], times[now]):
                ties.append(changed[-1])
    return tuple(changed), tuple(ties)


def _fastest(times: Mapping[str, Mapping[str, float]]) -> str:
    return min(times, key=lambda name: times[name]["us"])


def _within_noise(slower: Mapping[str, float], faster: Mapping[str, float]) -> bool:
    return slower["us"] / faster["us"] - 1 <= slower["noise"] + faster["noise"]
