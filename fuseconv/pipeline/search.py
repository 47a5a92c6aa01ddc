"""Chooses by measuring in which form the linear algebra of a filled bundle is computed, and fills the bundle again.

Each form is tried in the whole model, with every rule that matches then: planned, tested, written and verified as the
bundle itself, and timed in turn with the model as it is.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fuseconv.contract.ladder import ladder
from fuseconv.contract.spec import Contract
from fuseconv.errors import FileError, FuseconvError, RuleError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import SEARCH, Choice, Form, Forms, Plan
from fuseconv.measure.duel import duels
from fuseconv.measure.turns import Duel, Times
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.filling import Filling
from fuseconv.pipeline.tune import units_of
from fuseconv.rulebook.rule import Rule
from fuseconv.searching.extraction import Candidate
from fuseconv.searching.kinds import Kind, kinds

RUNGS = 4
"""The number of sizes at which forms are compared, if sizes are dynamic."""

REACH = 64
"""The largest of these sizes, as a multiple of the size of the example: of the product of its dims."""

SECONDS = 3.0
"""How long each form is timed, in seconds."""

Find = Callable[..., Plan]
"""Computes a tested plan: `find(rejected, forms=...)`."""


def rungs_of(contract: Contract, examples: Sequence[torch.Tensor]) -> list[dict[str, int]]:
    """Returns the sizes at which forms are compared, those of the example first."""
    captured = {
        dim.name: dim.value(size) or 1
        for spec, tensor in zip(contract.inputs, examples, strict=True)
        for dim, size in zip(spec.shape, tensor.shape, strict=True)
        if not isinstance(dim, int)
    }
    most = REACH * math.prod(captured.values())
    return [sizes for sizes in ladder(contract, captured) if math.prod(sizes.values()) <= most][:RUNGS]


def choose_forms(filling: Filling, known: Sequence[Rule], find: Find, progress: Progress) -> Forms:
    """Chooses the forms of regions, and fills the bundle with them if another form is faster.

    The forms are timed in the target that is written fastest. Tuning measures afterwards in which targets they pay.

    Args:
        filling: the verified bundle.
        known: the rules.
        find: computes the plan of the program.
        progress: called with the name of each step.

    Returns:
        The forms that were chosen, and for regions that are left as they are what is known of the others.
    """
    program = filling.assembly.program
    rungs = rungs_of(program.contract, program.examples)
    with progress("search forms"):
        found = kinds(program, filling.plan, known, rungs, filling.tactics)
    forms: dict[str, Form] = {}
    with tempfile.TemporaryDirectory() as scratch:
        trial = _Trial(filling, find, rungs if program.contract.dims() else [], Path(scratch), filling.folder)
        for at, kind in enumerate(found):
            with progress(f"time forms of region {at + 1} of {len(found)}"):
                forms[kind.text] = trial.best(forms, kind)
    if forms:
        filling.change(partial(find, forms=forms))
    return forms


@dataclass
class _Trial:
    """Times forms, each in a bundle of its own.

    Attributes:
        filling: the bundle with the greedy plan.
        find: computes a plan.
        sizes: the sizes of the calls. Empty for those of the example.
        scratch: where the bundles are written.
        base: the bundle with the forms that were chosen so far.
    """

    filling: Filling
    find: Find
    sizes: Sequence[Mapping[str, int]]
    scratch: Path
    base: Path
    _count: int = 0

    def best(self, forms: Forms, kind: Kind) -> Form:
        """Returns the fastest form of a kind of regions, with notes on the others."""
        notes = [f"the search for forms stopped at {kind.limit}"] if kind.limit else []
        folders: dict[Candidate, Path] = {}
        for candidate in kind.candidates:
            folder = self._written(candidate, {**forms, kind.text: Form(candidate.lines)})
            if isinstance(folder, Path):
                folders[candidate] = folder
            else:
                notes.append(f"{brief(candidate)} is not equal: {folder}")
        timed = dict(zip(folders, self._race(self.base, list(folders.values())), strict=True))
        best = self._best({candidate: folders[candidate] for candidate, duel in timed.items() if duel.wins})
        for candidate, duel in timed.items():
            known = f"{brief(candidate)}: {self._told(duel)}{_memory(candidate, kind.given)}"
            notes.append(f"chosen: {known}" if candidate is best else known)
        if best is None:
            return Form((), notes=tuple(notes))
        self.base = folders[best]
        choices = {target: _choice(duel) for target, duel in timed[best].times.items()}
        return Form(best.lines, choices, tuple(notes))

    def _written(self, candidate: Candidate, forms: Forms) -> Path | str:
        """Returns the bundle with some forms, or the reason why that of a candidate is not used."""
        plan = self.find(self.filling.rejected, forms=forms)
        if not any(step.rule == SEARCH and step.replace == candidate.lines for step in plan.applied):
            reasons = [miss.reason for miss in plan.misses if miss.rule == SEARCH]
            return reasons[-1] if reasons else "its region is no longer found"
        self._count += 1
        folder = self.scratch / f"{self._count}.fuseconv"
        folder.mkdir()
        try:
            program = rewrite(self.filling.assembly.program, plan)
            _, verified = self.filling.gate.write(folder, self.targets, program)
            self.filling.check_alike(verified)
        except (FileError, RuleError):
            raise
        except FuseconvError as error:
            return error.what
        return folder

    def _best(self, winners: Mapping[Candidate, Path]) -> Candidate | None:
        """Returns the fastest of those that are faster than the region as it is; the most promising one of ties."""
        best = next(iter(winners), None)
        if best is not None and len(winners) > 1:
            others = [candidate for candidate in winners if candidate is not best]
            timed = self._race(winners[best], [winners[candidate] for candidate in others])
            low = 1.0
            for candidate, duel in zip(others, timed, strict=True):
                if duel.wins and duel.ratio.median < low:
                    best, low = candidate, duel.ratio.median
        return best

    def _race(self, base: Path, challengers: Sequence[Path]) -> list[Duel]:
        if not challengers:
            return []
        reference, threads = self.filling.gate.reference, torch.get_num_threads()
        return duels(base, challengers, self.targets, reference, seconds=SECONDS, threads=threads, sizes=self.sizes)

    @property
    def targets(self) -> Sequence[str]:
        """The targets that are timed."""
        return units_of(self.filling.written)[0]

    def _told(self, duel: Duel) -> str:
        target, times = next(iter(duel.times.items()))
        words = f"{times.challenger:.1f} us, {times.base:.1f} us without it ({target})"
        if len(duel.cases) > 1:
            ratios = zip(self.sizes, duel.cases, strict=True)
            places = (f"{one.median:.2f} at {_sizes(sizes)}" for sizes, one in ratios)
            words += f"; share of the time: {', '.join(places)}"
        if any(one.faster for one in duel.cases) and any(one.slower for one in duel.cases):
            words += "; which is faster depends on the size"
        elif not (duel.ratio.faster or duel.ratio.slower):
            words += "; the difference is noise"
        return words


def _choice(times: Times) -> Choice:
    noise = times.ratio.noise * times.base
    return Choice(True, round(times.challenger, 2), round(times.base, 2), round(noise, 2))


def _sizes(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def _memory(candidate: Candidate, given: Candidate) -> str:
    more = candidate.bytes - given.bytes
    return f"; {more / 1e6:+.1f} MB of constants" if abs(more) >= 50_000 else ""


def brief(candidate: Candidate) -> str:
    """Returns what a form calls, without the constants that are computed at conversion."""
    lines = [line for line in candidate.lines if ": constant" not in line]
    return "; ".join(lines).replace("aten.", "").replace(".default", "")
