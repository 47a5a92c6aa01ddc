"""Measures which matches to replace in each target of a bundle, and moves the chosen artifacts into the bundle."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import torch

from fuseconv.bundle.tuned import Speed, Tuned
from fuseconv.errors import FileError, FuseconvError, UsageError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Choice
from fuseconv.measure.duel import duels
from fuseconv.parity.process import Verified
from fuseconv.pipeline.assembly import Progress, Written
from fuseconv.pipeline.filling import Filling
from fuseconv.runtime.environment import device_name
from fuseconv.tuning.budget import LEAST, Budget
from fuseconv.tuning.choosing import Choosing, Chosen, Left
from fuseconv.tuning.classes import Classes
from fuseconv.tuning.recorded import with_choices
from fuseconv.weights.store import Store, weights_of

Tune = Literal["none", "quick", "full"]
"""How much is measured. `none` measures nothing, `quick` takes at most about as long as the conversion took so far, and
`full` measures every class of matches."""

SECONDS: Mapping[Tune, float] = {"quick": 1.5, "full": 6.0}
"""The approximate time that is spent on timing each artifact, in seconds."""


START = 5.0
"""The assumed duration of a race, which times several small artifacts with interleaved calls, in seconds."""


def tune_of(wanted: Tune | None, device: str) -> Tune:
    """Validates and returns the `tune` argument. Returns the default for None: `quick` on CUDA, `none` on a CPU.

    Raises:
        UsageError: the argument is not one of `none`, `quick` and `full`.
    """
    if wanted is not None and wanted not in get_args(Tune):
        raise UsageError(
            f"unknown value {wanted!r} of tune", where="--tune", fix=f"use one of {', '.join(get_args(Tune))}"
        )
    return wanted or ("quick" if device == "cuda" else "none")


def measure_choices(
    filling: Filling, how: Tune, begun: float, progress: Progress, kept: Mapping[str, Path] = MappingProxyType({})
) -> None:
    """Times each target with and without its classes of matches, and keeps the fastest artifact.

    Args:
        filling: the verified bundle, in which the chosen plan, artifacts and verification results are stored.
        how: how much to measure: `none`, `quick` or `full`.
        begun: the time at which the conversion began, in seconds of `time.monotonic`. Quick tuning may take as long as
            the conversion has taken so far, or `LEAST` seconds if that is longer.
        progress: called with the name of each step; returns a context manager in which the step runs.
        kept: the folders to which bundles with unfused artifacts are moved for later use, by the name of the target.
            Nothing is moved if the unfused artifact is the chosen one.
    """
    if how == "none":
        return
    classes = Classes.of(filling.assembly.program, filling.plan)
    budget = Budget(max(time.monotonic() - begun, LEAST) if how == "quick" else None)
    choices: dict[str, Mapping[str, Choice]] = {}
    speeds: dict[str, Speed] = {}
    untimed: dict[str, str] = {}
    needed: dict[str, dict[str, str]] = {}
    suspects: Left = frozenset()
    units = units_of(filling.written)
    for at, names in enumerate(units):
        # Writing the unfused artifacts of the other targets takes about as long as writing their fused artifacts took.
        budget.reserved = sum(filling.written[name].seconds + START for unit in units[at + 1 :] for name in unit)
        with progress(f"tune {' and '.join(names)}"), tempfile.TemporaryDirectory() as scratch:
            bench = _Bench(filling, classes, names, Path(scratch))
            race = partial(
                duels,
                targets=names,
                reference=filling.gate.reference,
                seconds=SECONDS[how],
                threads=torch.get_num_threads(),
            )
            choosing = Choosing(classes, filling.folder, bench.write, race, budget, SECONDS[how], suspects)
            try:
                chosen = choosing.choose()
            except FileError:
                raise
            except FuseconvError as error:
                untimed |= dict.fromkeys(names, error.what)
                continue
            bench.install(chosen)
            for name in kept.keys() & set(names):
                bench.keep_unfused(chosen, kept[name])
        suspects |= chosen.slow
        choices |= chosen.choices
        speeds |= chosen.speeds
        needed |= {name: dict(chosen.needed) for name in names if chosen.needed}
    device = device_name(filling.assembly.program.contract.device)
    tuned = Tuned(device=device, speeds=speeds, untimed=untimed, needed=needed)
    filling.record(with_choices(filling.plan, classes, choices), tuned)


def units_of(written: Mapping[str, Written]) -> list[tuple[str, ...]]:
    """Returns the names of the targets grouped by folder. The group that is fastest to write comes first.

    Targets in one folder, such as onnx and onnx-plugin, share their weights, and therefore their plan.
    """
    folders: dict[Path, list[str]] = {}
    for name, one in written.items():
        folders.setdefault(Path(one.path).parent, []).append(name)
    units = [tuple(names) for names in folders.values()]
    return sorted(units, key=lambda names: sum(written[name].seconds for name in names))


@dataclass
class _Bench:
    """Writes bundles with different sets of replaced matches into a temporary folder, to be timed."""

    filling: Filling
    classes: Classes
    names: Sequence[str]
    scratch: Path
    _made: dict[Path, tuple[dict[str, Written], dict[str, Verified]]] = field(default_factory=dict)

    def write(self, left: Left) -> Path:
        """Writes and verifies a bundle in which the classes in `left` are not replaced, and returns its folder.

        Raises:
            FuseconvError: a target fails, or an output differs and this is not a known limit of the target.
        """
        folder = self.scratch / f"{len(self._made)}.fuseconv"
        folder.mkdir()
        program = rewrite(self.filling.assembly.program, self.classes.plan_without(left))
        store = Store.create(folder, weights_of(program.exported))
        self._made[folder] = made = self.filling.gate.write(folder, self.names, program, store=store)
        self.filling.check_alike(made[1])
        return folder

    def install(self, chosen: Chosen) -> None:
        """Copies the chosen artifacts into the bundle, unless the bundle already contains the chosen artifacts."""
        if chosen.folder in self._made:
            self.filling.exchange(chosen.folder, *self._made[chosen.folder])

    def keep_unfused(self, chosen: Chosen, path: Path) -> None:
        """Moves the bundle with the unfused artifacts to `path`, unless the unfused artifacts were chosen."""
        if chosen.unfused not in (chosen.folder, self.filling.folder):
            shutil.move(chosen.unfused, path)
