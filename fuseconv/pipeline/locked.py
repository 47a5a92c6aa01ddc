"""Records the choices of a tuned conversion in fuseconv.lock, and follows the choices later without measuring again.

A tactic is the kernel choice for one problem and size. A form is a list of ops that is equivalent to a region of linear
algebra. A class is a set of equal matches, such as the matches in equal layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fuseconv.errors import FrozenError
from fuseconv.matching.lock import LOCK, Chosen, Tactics, read_lock
from fuseconv.matching.plan import MatchKey
from fuseconv.matching.steps import Forms, Miss, Plan
from fuseconv.pipeline.conversion import Conversion
from fuseconv.pipeline.match import check_matches, find_plan
from fuseconv.program.captured import Program
from fuseconv.rulebook.json_text import pointer_of
from fuseconv.rulebook.rule import Rule
from fuseconv.tuning.recorded import recorded, replayed


def chosen_of(done: Conversion, program: Program) -> Chosen | None:
    """Returns the measured choices of a conversion, to record in the lock, or None if nothing was measured."""
    return None if done.tuned is None else Chosen(tuned=done.tuned, choices=recorded(program, done.plan))


def chosen_in(path: str | Path | None, entry: str) -> Chosen | None:
    """Reads the choices for a bundle from a lock file. Returns None if there is no lock or no recorded choice."""
    return None if path is None else read_lock(Path(path)).chosen.get(entry)


def tactics_in(path: str | Path | None, entry: str) -> Tactics:
    """Reads the tactics for a bundle from a lock file. Returns an empty mapping if there is no lock or no tactic."""
    return {} if path is None else read_lock(Path(path)).tactics.get(entry, {})


def forms_in(path: str | Path | None, entry: str) -> Forms:
    """Reads the forms for a bundle from a lock file. Returns an empty mapping if there is no lock or no form."""
    return {} if path is None else read_lock(Path(path)).forms.get(entry, {})


def find_chosen_plan(
    program: Program,
    known: Sequence[Rule],
    names: Sequence[str],
    allow: Collection[str],
    chosen: Chosen | None,
    rejected: Mapping[MatchKey, Miss] = MappingProxyType({}),
    forms: Forms = MappingProxyType({}),
) -> Plan:
    """Returns the plan that `find_plan` returns, with the choices from a lock recorded on the plan's steps."""
    found = find_plan(program, known, names, allow, rejected, forms)
    return found if chosen is None else replayed(program, found, chosen.choices)


def check_frozen(
    path: str | Path, entry: str, plan: Plan, program: Program, known: Sequence[Rule], chosen: Chosen | None
) -> None:
    """Checks that a plan contains exactly the matches in a lock, including every class that the lock leaves unfused.

    Raises:
        FrozenError: a recorded match is not found, a match is not recorded, or a class is not found.
    """
    check_matches(path, entry, plan, program, known)
    found = recorded(program, plan)
    for target, choices in (chosen.choices if chosen is not None else {}).items():
        left = [name for name, choice in choices.items() if not choice.applied]
        if lost := [name for name in left if name not in found.get(target, {})]:
            what = f"the lock leaves alone a match in the target {target} that was not found: {lost[0]}"
            pointer = pointer_of("chosen", entry, "choices", target, lost[0])
            raise FrozenError(what, where=f"{path} ({pointer})", fix=LOCK)
