"""Chooses the fastest form of each kind of region, by timing whole models that differ only in this form.

A region is a connected part of the program that computes linear algebra. A form of a region is an algebraically
equivalent list of ops. Regions with the same text, such as those in equal layers, are of one kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from fuseconv.errors import FileError, FuseconvError
from fuseconv.matching.steps import Choice, Form, Forms
from fuseconv.measure.turns import Duel, Times
from fuseconv.searching.extraction import Candidate
from fuseconv.searching.kinds import Kind

SMALL = 50_000
"""If two forms differ by fewer bytes of constants than this, the difference is not reported."""

Model = TypeVar("Model")


@dataclass
class FormChoice(Generic[Model]):
    """Chooses between forms, for one kind of region after the other.

    Attributes:
        base: the model with the forms that have been chosen so far.
        write: writes and verifies the model with the given forms. Raises FuseconvError if a form is wrong or cannot be
            written.
        race: times models against a base model, and returns one result per model, in order.
        sizes: the sizes of the dims in each timed call. Empty if all dims are static.
    """

    base: Model
    write: Callable[[Forms], Model]
    race: Callable[[Model, Sequence[Model]], list[Duel]]
    sizes: Sequence[Mapping[str, int]] = ()

    def best(self, forms: Forms, kind: Kind) -> Form:
        """Times the forms of a kind of region. Returns the fastest form, with notes on all tried forms.

        A form is chosen only if it is faster than the unchanged region by more than the noise. If there is no such
        form, the returned form contains no ops. Among several such forms, the first candidate is chosen unless others
        are faster than the first by more than the noise. Then the fastest of these is chosen.

        Args:
            forms: the forms that were chosen for other kinds, which are kept.
            kind: the kind of region for which a form is chosen.
        """
        notes = [f"the search stopped at {kind.limit}; the forms found before that were tried"] if kind.limit else []
        written: dict[Candidate, Model] = {}
        for candidate in kind.candidates:
            try:
                written[candidate] = self.write({**forms, kind.text: Form(candidate.lines)})
            except FileError:
                raise
            except FuseconvError as error:
                notes.append(f"{brief(candidate.lines)} was not tried: {error.what}")
        timed = self._timed(self.base, written)
        best = self._fastest({one: written[one] for one, duel in timed.items() if duel.wins})
        for candidate, duel in timed.items():
            known = f"{brief(candidate.lines)}: {self._told(duel)}{_memory(candidate, kind.given)}"
            notes.append(f"chosen: {known}" if candidate is best else known)
        if best is None:
            return Form((), notes=tuple(notes))
        self.base = written[best]
        choices = {target: _choice(times) for target, times in timed[best].times.items()}
        return Form(best.lines, choices, tuple(notes))

    def _timed(self, base: Model, models: Mapping[Candidate, Model]) -> dict[Candidate, Duel]:
        return dict(zip(models, self.race(base, list(models.values())) if models else [], strict=True))

    def _fastest(self, winners: Mapping[Candidate, Model]) -> Candidate | None:
        first = next(iter(winners), None)
        if first is None:
            return None
        others = {candidate: model for candidate, model in winners.items() if candidate is not first}
        faster = {one: duel for one, duel in self._timed(winners[first], others).items() if duel.wins}
        return min(faster, key=lambda one: faster[one].ratio.median, default=first)

    def _told(self, duel: Duel) -> str:
        target, times = next(iter(duel.times.items()))
        words = f"{times.challenger:.1f} us, {times.base:.1f} us without it ({target})"
        if len(duel.cases) > 1:
            places = (f"{one.median:.2f} at {_sizes(sizes)}" for sizes, one in zip(self.sizes, duel.cases, strict=True))
            words += f"; share of the time: {', '.join(places)}"
        if any(one.faster for one in duel.cases) and any(one.slower for one in duel.cases):
            return f"{words}; which form is faster depends on the size"
        return words if duel.ratio.faster or duel.ratio.slower else f"{words}; the difference is within the noise"


def brief(lines: Sequence[str]) -> str:
    """Returns the ops that a form calls as one string, without the constants that are computed at conversion."""
    called = [line for line in lines if ": constant" not in line]
    return "; ".join(called).replace("aten.", "").replace(".default", "")


def _choice(times: Times) -> Choice:
    noise = times.ratio.noise * times.base
    return Choice(True, round(times.challenger, 2), round(times.base, 2), round(noise, 2))


def _sizes(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def _memory(candidate: Candidate, given: Candidate) -> str:
    more = candidate.bytes - given.bytes
    return f"; {more / 1e6:+.1f} MB of constants" if abs(more) >= SMALL else ""
