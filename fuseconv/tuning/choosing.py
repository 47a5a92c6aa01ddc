"""Chooses which classes of matches are replaced in the targets of one folder, by timing whole models.

A class is a set of equal matches, such as the matches in equal layers. To measure a class, the calls of two whole
models are interleaved: the model with all matches replaced, and the model without the replacements of this class. The
class is thus measured beside the ops that really surround it, the target's own compiler may fuse the unfused ops, and
the operands are as cold in the cache as in a real call. Because classes may depend on each other, the choice is
confirmed by timing whole models against the unfused model. A model with fewer fusions is preferred unless a model with
more fusions is faster by more than the noise.
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
"""The time in seconds by which the budget may be exceeded to find out which classes slow the model down. It applies if
the model with every match replaced is not faster than the unfused model."""

Left = frozenset[str]
"""The names of the classes whose matches are left unfused."""

Write = Callable[[Left], Path]
"""Writes and verifies a bundle in which some classes are left unfused, and returns its folder. Raises FuseconvError if
the bundle cannot be written or does not pass verification."""

Race = Callable[[Path, Sequence[Path]], list[Duel]]
"""Times each of several bundles against a base bundle, with interleaved calls. Returns one result per bundle."""


@dataclass(frozen=True)
class Chosen:
    """The chosen classes and artifacts for the targets in one folder.

    Attributes:
        left: the names of the classes that are left unfused.
        folder: the folder of the bundle with the chosen artifacts.
        unfused: the folder of the bundle with the unfused artifacts.
        choices: maps the name of each target to a dict from the name of a class to the choice for this class. A class
            that is neither measured nor left unfused has no entry.
        speeds: the measured times of each target, by name.
        slow: the names of the classes that make these targets slower.
        needed: maps the name of each class without which these targets cannot be written to the reason.
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
    """Makes the choice for the targets in one folder, which share one plan.

    Attributes:
        classes: the classes of the plan's matches.
        folder: the folder of the bundle with every match replaced.
        write: writes a bundle in which some classes are left unfused.
        race: times bundles (challengers) against a base bundle. Returns one result per challenger.
        budget: limits the time spent on measurements.
        seconds: the time in seconds that a race spends on each challenger.
        suspects: the names of the classes that make another target slower. They are measured first.
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
        """Measures the classes, chooses which classes to leave unfused, and returns the choice.

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
        """Writes the unfused model, times the model with every match replaced against it, and returns the result."""
        self._folders[frozenset()] = self.folder
        start = self.budget.clock()
        if self.classes.every:
            self._folders[self.classes.every] = self.write(self.classes.every)
        self._write_seconds = self.budget.clock() - start
        (whole,) = self.race(self._folders[self.classes.every], [self.folder])
        self._start_seconds = max(self.budget.clock() - start - self._write_seconds - self.seconds, 0)
        return whole

    def _groups(self) -> list[Left]:
        """Returns the groups of classes to measure. Each class is a group of its own, as far as the time allows.

        The classes of a group are left unfused together. If the time is too short to measure every suspect alone, all
        suspects form the only group. If the model with every match replaced is not faster than the unfused model, the
        budget may be exceeded by `GRACE`.
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
        """Times, for each group, the model without the group against the model with every match replaced.

        Returns the results by the set of classes that the model leaves unfused. Skips models that cannot be written.
        """
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
        """Times the candidates and the model with every match replaced against the unfused model.

        A candidate is the set of classes that a model leaves unfused. Returns the results by candidate, from the
        fewest fusions to the most. A candidate that is not written yet is timed only if the time allows.
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
        """Returns the choice for each class in each target, with times from the class's own measurement if it has one.

        A class that is left unfused without its own measurement gets the times of the whole model.
        """
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
    """Returns the classes that the best candidate leaves unfused. Returns `unfused` if no candidate wins.

    A candidate with more fusions is better only if it is faster than the best candidate with fewer fusions by more than
    the noise.
    """
    best, low = unfused, 1.0
    for left, duel in final.items():
        if duel.wins and duel.ratio.high < low:
            best, low = left, duel.ratio.low
    return best


def _choice(applied: bool, fused: float, unfused: float, noise: float) -> Choice:
    return Choice(applied, round(fused, 2), round(unfused, 2), round(noise, 2))
