"""Chooses for one target which classes of matches are replaced, by timing whole models.

A class is measured where it is used: the model with all matches is timed in turn with the model without that class. So
the neighbours are the real ones, the target's own compiler fuses what it can of the ops that are left, and operands are
as cold as they are in a call. What was found is confirmed on whole models against the unfused one, since the classes
may depend on each other. A model with fewer fusions is kept unless one with more is faster beyond the noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuseconv.bundle.tuned import Speed
from fuseconv.errors import FileError, FuseconvError
from fuseconv.matching.steps import Choice
from fuseconv.measure.turns import Duel
from fuseconv.tuning.budget import Budget
from fuseconv.tuning.classes import Classes

GRACE = 30.0
"""Seconds beyond the budget that may be spent on finding out why a model with every match is not faster."""

Left = frozenset[str]
"""The classes that are left alone."""

Write = Callable[[Left], Path]
"""Writes and verifies the bundle without some classes. Raises FuseconvError if it fails, or computes something else."""

Race = Callable[[Path, Sequence[Path]], list[Duel]]
"""Times bundles against a base."""


@dataclass(frozen=True)
class Chosen:
    """What is chosen for the targets in one folder.

    Attributes:
        left: the classes that are left alone.
        folder: the bundle that has the chosen artifacts.
        unfused: the bundle that has the unfused artifacts.
        choices: target to class to what was measured. A class that is neither measured nor left alone is not named.
        speeds: target to its times.
        slow: the classes that make these targets slower.
        needed: the classes without which these targets cannot be written, with the reasons.
    """

    left: Left
    folder: Path
    unfused: Path
    choices: Mapping[str, Mapping[str, Choice]]
    speeds: Mapping[str, Speed]
    slow: Left
    needed: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Choosing:
    """The choice for the targets in one folder, which have the same plan.

    Attributes:
        classes: the classes of the plan.
        folder: the bundle with every match replaced.
        write: writes another bundle.
        race: times bundles.
        budget: the time for it.
        seconds: how long a race times each challenger.
        suspects: the classes that make another target slower.
    """

    classes: Classes
    folder: Path
    write: Write
    race: Race
    budget: Budget
    seconds: float
    suspects: Left = frozenset()
    _folders: dict[Left, Path] = field(default_factory=dict)
    _needed: dict[str, str] = field(default_factory=dict)
    _grace: float = 0.0
    _write_seconds: float = 0.0
    _start_seconds: float = 0.0

    def choose(self) -> Chosen:
        """Measures and chooses.

        Raises:
            FuseconvError: the unfused model cannot be written to the target, or the artifacts cannot be timed.
        """
        whole = self._whole()
        if not self.classes.every:
            speeds = self._speeds(frozenset(), {frozenset(): whole}, 0)
            return Chosen(frozenset(), self.folder, self.folder, {}, speeds, frozenset())
        self._grace = 0.0 if whole.wins else GRACE
        alone = self._alone(self._groups())
        slow = frozenset[str]().union(*(left for left, duel in alone.items() if duel.ratio.faster))
        doubtful = slow.union(*(left for left, duel in alone.items() if not duel.ratio.slower))
        final = self._confirmed([self.classes.without(slow), self.classes.without(doubtful)], whole)
        best = _best(self.classes.every, final)
        speeds = self._speeds(best, final, len(alone))
        choices, unfused = self._choices(best, alone, final), self._folders[self.classes.every]
        return Chosen(best, self._folders[best], unfused, choices, speeds, slow, self._needed)

    def _whole(self) -> Duel:
        """Times the model with every match against the unfused one."""
        self._folders[frozenset()] = self.folder
        start = self.budget.clock()
        if self.classes.every:
            self._folders[self.classes.every] = self.write(self.classes.every)
        self._write_seconds = self.budget.clock() - start
        (whole,) = self.race(self._folders[self.classes.every], [self.folder])
        self._start_seconds = max(self.budget.clock() - start - self._write_seconds - self.seconds, 0)
        return whole

    def _groups(self) -> list[Left]:
        """Returns what is left out together: each class, as far as the time allows; if it is short, all suspects.

        Suspects are tried in any case if the model with every match is not faster.
        """
        each, races = self._write_seconds + self.seconds, 2 * self._start_seconds
        names = sorted(self.classes.inserting, key=lambda name: name not in self.suspects)
        count = self.budget.affords(each, beside=each + races - self._grace)
        if (
            count is not None
            and len(self.suspects) > count
            and (self._grace or self.budget.affords(each, beside=races))
        ):
            return [self.suspects]
        return [frozenset({name}) for name in names[:count]]

    def _alone(self, groups: Sequence[Left]) -> dict[Left, Duel]:
        """Times the model without each group against the model with all. Leaves out what cannot be written so."""
        lefts = list(dict.fromkeys(filter(self._is_written, map(self.classes.without, groups))))
        found = self.race(self.folder, [self._folders[left] for left in lefts]) if lefts else []
        return dict(zip(lefts, found, strict=True))

    def _is_written(self, left: Left) -> bool:
        if left not in self._folders:
            try:
                self._folders[left] = self.write(left)
            except FileError:
                raise
            except FuseconvError as error:
                self._needed |= dict.fromkeys(sorted(left), error.what)
                return False
        return True

    def _confirmed(self, candidates: Sequence[Left], whole: Duel) -> dict[Left, Duel]:
        """Times candidates and the model with every match against the unfused model, from few fusions to many.

        A candidate that is not written yet takes part if the time allows.
        """
        every, lefts = self.classes.every, [frozenset[str]()]
        for left in candidates:
            if left not in (every, *lefts) and (left in self._folders or self._affords_another()):
                lefts += [left] if self._is_written(left) else []
        if len(lefts) == 1:
            return {lefts[0]: whole}
        lefts.sort(key=len, reverse=True)
        return dict(zip(lefts, self.race(self._folders[every], [self._folders[left] for left in lefts]), strict=True))

    def _affords_another(self) -> bool:
        return self.budget.affords(self._write_seconds + self.seconds, beside=self._start_seconds - self._grace) != 0

    def _choices(
        self, best: Left, alone: Mapping[Left, Duel], final: Mapping[Left, Duel]
    ) -> dict[str, dict[str, Choice]]:
        """Returns the choice for each class: by its own measurement, else by that of the whole model."""
        own = {name: duel for left, duel in sorted(alone.items(), key=lambda one: -len(one[0])) for name in left}
        whole = final[frozenset()]
        choices: dict[str, dict[str, Choice]] = {}
        for target, times in whole.times.items():
            of_target = choices.setdefault(target, {})
            for name in sorted(self.classes.every):
                if name in own:
                    pair = own[name].times[target]
                    noise = pair.ratio.noise * pair.base
                    of_target[name] = _choice(name not in best, pair.base, pair.challenger, noise)
                elif name in best:
                    noise = times.ratio.noise * times.base
                    of_target[name] = _choice(False, times.challenger, times.base, noise)
        return choices

    def _speeds(self, best: Left, final: Mapping[Left, Duel], measured: int) -> dict[str, Speed]:
        whole = final[frozenset()]
        chosen = final.get(best, whole)
        return {
            target: Speed(
                us=round(chosen.times[target].challenger if best in final else times.base, 2),
                fused_us=round(times.challenger, 2),
                unfused_us=round(chosen.times[target].base, 2),
                noise_us=round(chosen.times[target].ratio.noise * chosen.times[target].base, 2),
                measured=measured,
                classes=len(self.classes.inserting),
            )
            for target, times in whole.times.items()
        }


def _best(unfused: Left, final: Mapping[Left, Duel]) -> Left:
    """Returns the classes that the best candidate leaves alone. It is faster than those with fewer fusions."""
    best, low = unfused, 1.0
    for left, duel in final.items():
        if duel.wins and duel.ratio.high < low:
            best, low = left, duel.ratio.low
    return best


def _choice(applied: bool, fused: float, unfused: float, noise: float) -> Choice:
    return Choice(applied, round(fused, 2), round(unfused, 2), round(noise, 2))
