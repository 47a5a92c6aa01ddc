"""Measures the tactics of a bundle on this machine: the backends and engines that its op libraries can choose from.

A separate process loads each target and calls it at sizes across the ranges of the contract. With FUSECONV_TIMING=on,
the op libraries time every problem that they encounter, and write the results to the file that FUSECONV_TIMING_CACHE
names. In a bundle this file is tuning.json, which the op libraries read when they are loaded. docs/tuning.md describes
the file.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseconv.bundle.manifest import Manifest, read_manifest
from fuseconv.contract.inputs import example_sizes
from fuseconv.contract.ladder import ladder
from fuseconv.errors import FuseconvError, RefusedError, UpstreamError
from fuseconv.processes.forked import TIME_LIMIT
from fuseconv.processes.group import run_in_group
from fuseconv.processes.lifetime import end_with
from fuseconv.runtime.few_kernels import Problems, few_kernels
from fuseconv.runtime.model import load_target
from fuseconv.runtime.warm_up import has_memory
from fuseconv.targets import spec_of
from fuseconv.untrusted.files import read_plain

FILE = "tuning.json"

SECONDS = 60.0
"""The default time limit of the calls, in seconds. The calls are spread over the contract's ranges."""

FORMAT = "fuseconv tuning 1"


@dataclass(frozen=True)
class Measured:
    """The result of measuring a bundle.

    Attributes:
        problems: the tactics and their times. Unless `frozen` was set, only the tactics that `few_kernels` keeps.
        calls: for each target, the number of sizes at which the target was called.
        left: for each target, the number of sizes that were skipped, because time or memory ran out, or because the
            target failed at the size.
        failures: for each target that does not run, the reason.
    """

    problems: Problems
    calls: Mapping[str, int]
    left: Mapping[str, int]
    failures: Mapping[str, str] = field(default_factory=dict)


def has_tactics(manifest: Manifest, target: str) -> bool:
    """Returns whether the ops of a target choose between tactics. Only the ops of the CUDA op libraries do."""
    spec = spec_of(target)
    return manifest.contract.device == "cuda" and (spec.plugin or spec.runtime == "torch")


def measure(
    folder: Path,
    manifest: Manifest,
    targets: Sequence[str],
    *,
    seconds: float = SECONDS,
    known: Problems | None = None,
    frozen: bool = False,
) -> Measured:
    """Measures the tactics of a bundle's targets in a new process. Does not change the bundle.

    Args:
        folder: the folder of the bundle, which was just opened or sealed.
        manifest: the manifest of the bundle.
        targets: the targets to call. Targets without tactics are skipped.
        seconds: the time limit for the calls of the first target. Each other target gets half of this time.
        known: the tactics of earlier measurements, whose problems are not measured again. None if there are none.
        frozen: whether to call the targets without measuring. A target then fails if it encounters a problem that is
            not in `known`.

    Raises:
        UpstreamError: the process cannot be started, or does not end.
        RefusedError: the process wrote something other than tactics.
    """
    tuned = [target for target in targets if has_tactics(manifest, target)]
    if not tuned:
        return Measured(known or {}, {}, {})
    root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as scratch:
        written, told = Path(scratch, FILE), Path(scratch, "told.json")
        write(written, known or {})
        words = [sys.executable, "-P", "-W", "ignore", "-m", "fuseconv.runtime.tactics"]
        timing = {"FUSECONV_TIMING": "known" if frozen else "on", "FUSECONV_TIMING_CACHE": str(written)}
        limit = TIME_LIMIT + seconds * len(tuned)
        try:
            done = run_in_group(
                [*words, str(os.getpid()), str(folder.absolute()), str(told), repr(seconds), *tuned],
                seconds=limit,
                environment={**os.environ, "PYTHONPATH": search, **timing},
                folder=Path(scratch),
            )
        except subprocess.TimeoutExpired:
            raise UpstreamError(
                f"the process that measures tactics did not end within {limit:g} s",
                where=str(folder),
                fix="check with `fuseconv bench` which target hangs, and leave it out",
            ) from None
        last = "\n".join(done.stderr.splitlines()[-3:])
        if not told.is_file():
            raise UpstreamError(
                f"the process that measures tactics cannot be started (exit {done.returncode}): {last}",
                where=str(folder),
                fix="free memory that other processes use, and run the command again",
            )
        state = json.loads(read_plain(told))
        if done.returncode != 0:
            state["failures"][list(state["calls"])[-1]] = f"its process ended with status {done.returncode}: {last}"
        problems = read(written)
        return Measured(problems if frozen else few_kernels(problems), **state)


def read(path: Path) -> Problems:
    """Reads tactics from a file in the format of tuning.json. Returns an empty dict if the file does not exist.

    Raises:
        RefusedError: the file is damaged, or has a different format version.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(read_plain(path))
        if value["format"] == FORMAT:
            return _checked(value["problems"])
        found = f"its format is {value['format']}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = f"it is damaged: {error}"
    except OSError as error:
        found = f"{error.strerror}"
    raise RefusedError(f"{FILE} cannot be read: {found}", where=str(path), fix="write it again with `fuseconv tune`")


def _checked(problems: Any) -> Problems:
    """Validates every value of a parsed file and returns the problems. Raises ValueError or KeyError, for example."""
    found: Problems = {}
    for family, sizes in problems.items():
        for size, times in sizes.items():
            sound = all(0 < one["us"] < math.inf and 0 <= one["noise"] < math.inf for one in times.values())
            if int(size) < 1 or not sound:
                raise ValueError(f"the times of {family} at {size}")
            found.setdefault(family, {})[size] = times
    return found


def write(path: Path, problems: Problems) -> None:
    """Writes tactics to a file that the op libraries read, with ascending sizes and the fastest tactic first."""
    ordered = {
        family: {
            size: dict(sorted(tactics.items(), key=lambda one: one[1]["us"]))
            for size, tactics in sorted(sizes.items(), key=lambda one: int(one[0]))
        }
        for family, sizes in sorted(problems.items())
    }
    path.write_text(json.dumps({"format": FORMAT, "problems": ordered}, indent=1) + "\n", encoding="utf-8")


def merged(old: Problems, new: Problems) -> Problems:
    """Merges two measurements. Where both contain the same size of a problem family, keeps the tactics of `new`."""
    return {family: {**old.get(family, {}), **new.get(family, {})} for family in old | new}


def main(parent: str, bundle: str, told: str, seconds: str, *targets: str) -> None:
    """Calls the targets of a bundle in this process, and writes the progress as JSON to the file `told`.

    Args:
        parent: the process ID of the parent, with which this process ends.
        bundle: the folder of the bundle.
        told: the path of the output file, which receives the fields `calls`, `left` and `failures` of `Measured`.
        seconds: the time limit for the calls of the first target. Each other target gets half of this time.
        targets: the names of the targets.
    """
    end_with(int(parent))
    folder = Path(bundle)
    manifest = read_manifest(folder)
    contract = manifest.contract
    sizes = ladder(contract, example_sizes(contract))
    state: dict[str, dict[str, Any]] = {"calls": {}, "left": {}, "failures": {}}
    for target in targets:
        # A later target needs less time, because an earlier target has already measured most of its problems.
        end = time.monotonic() + float(seconds) * (0.5 if state["calls"] else 1.0)
        state["calls"][target] = state["left"][target] = 0
        Path(told).write_text(json.dumps(state), encoding="utf-8")
        try:
            model = load_target(folder, manifest, target)
            for one in sizes:
                # Once a call has succeeded, a failure is treated as lack of memory, unless every tactic must be known.
                any_failure = state["calls"][target] > 0 and os.environ.get("FUSECONV_TIMING") != "known"
                if time.monotonic() < end and has_memory(model, contract, one, any_failure=any_failure):
                    state["calls"][target] += 1
                else:
                    state["left"][target] += 1
        except FuseconvError as error:
            state["failures"][target] = error.what
        Path(told).write_text(json.dumps(state), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
