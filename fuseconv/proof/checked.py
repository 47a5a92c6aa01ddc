"""Computes a plan and tests every step: on the values that occur in the model at the match, and on adversarial values.

Matching proves only what follows from types and shapes. The rule claims that its replacement computes the same values.
So the claim is tested at each match, and a match is not replaced if the error of the replacement against float64
exceeds the error of the matched ops. If a literal of the program differs from the literal of the rule (0.0447
instead of 0.044715), the literal explains the difference, and the rule is not at fault.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import FuseconvError, RuleError, is_out_of_memory
from fuseconv.matching import unforeseen
from fuseconv.matching.graph import source_line
from fuseconv.matching.plan import MatchKey, plan
from fuseconv.matching.regions import search_rule
from fuseconv.matching.steps import Forms, Miss, Plan, Step, Trial
from fuseconv.program.captured import Program
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.adversarial import Hard, draws, hard, kind
from fuseconv.proof.difference import Compared
from fuseconv.proof.edges import edges_of
from fuseconv.proof.ledger import Excerpt, Ledger
from fuseconv.proof.operands import ORDINARY, OVERFLOWING, described
from fuseconv.proof.redrawn import COMPARISONS
from fuseconv.proof.replay import replay
from fuseconv.rulebook.rule import Rule

ROUNDS = 20
"""The maximum number of plans to compute. Each plan excludes the matches that failed in the plans before it."""


def checked_plan(
    program: Program,
    rules: Sequence[Rule],
    *,
    device: str,
    targets: Collection[str],
    allow: Collection[str] = (),
    rejected: Mapping[MatchKey, Miss] = MappingProxyType({}),
    forms: Forms = MappingProxyType({}),
) -> Plan:
    """Computes a plan that excludes the matches at which a rule fails its numerical test.

    A rule with the field `allow`, which declares that the rule changes numerical results, is not tested.

    Args:
        program: the captured program, which is not changed.
        rules: the rules to apply. Their order breaks ties.
        device: `cpu` or `cuda`. Rules for other devices are skipped.
        targets: the targets to write. If a rule does not support all of them, its matches become misses.
        allow: the `allow` names of the rules that change numerical results and may be applied.
        rejected: maps each match that must not be replaced to its miss.
        forms: maps the text of a region to the form chosen for it.

    Returns:
        The plan. Its misses include the rejected matches with the measured errors.

    Raises:
        RuleError: a rule does not match the ops of this process, rules form a rewrite cycle, or each of `ROUNDS` plans
            has new matches that fail.
        UnsupportedError: the program cannot run on its example inputs.
    """
    left = dict(rejected)
    trial = _Trial(program, rules)
    for _ in range(ROUNDS):
        with quiet_torch():
            found = plan(program, rules, device=device, targets=targets, allow=allow, rejected=left, forms=forms)
            wrong = trial.wrong(found)
        if not wrong:
            told = {(miss.rule, miss.node) for miss in found.misses}
            more = tuple(miss for miss in left.values() if (miss.rule, miss.node) not in told)
            steps = tuple(replace(step, trial=trial.figures.get(repr(step))) for step in found.steps)
            return replace(found, steps=steps, misses=found.misses + more)
        left |= wrong
    names = ", ".join(sorted({miss.rule for miss in left.values()}))
    raise RuleError(
        f"the rules {names} fail at new matches again and again",
        where=next(reversed(left.values())).node,
        fix="check these rules with `fuseconv rules check`, or leave them out with --no-rule",
    )


@dataclass(frozen=True)
class _Drawn:
    """The result of the test on random values: the first difference, and how many sets of operands gave none."""

    difference: str = ""
    passed: int = 0


class _Trial:
    """Tests the steps of successive plans, and remembers the results.

    Each step is tested once on the values that occur in the model. Of the steps with equal `adversarial.kind`, only the
    first is tested on random values. `figures` maps the text of each step that passed to its figures.
    """

    def __init__(self, program: Program, rules: Sequence[Rule]) -> None:
        self._program = program
        self._rules = {rule.name: rule for rule in (*rules, search_rule(rules))}
        self.figures: dict[str, Trial] = {}
        self._kinds: dict[str, _Drawn] = {}

    def wrong(self, found: Plan) -> dict[MatchKey, Miss]:
        """Returns the matches of a plan that fail their test, each with the miss that describes the failure."""
        ledger = Ledger(self._program)
        excerpts = []
        for step in found.steps:
            try:
                excerpts.append(ledger.execute(step))
            except Exception as error:  # noqa: BLE001 - the ledger may be half rewritten: a new plan and ledger follow
                return {(step.rule, step.nodes): _unforeseen(step, error)}
        exempt = {name for name, rule in self._rules.items() if rule.allow is not None}
        new = [one for one in excerpts if repr(one.step) not in self.figures and one.step.rule not in exempt]
        wrong = {}
        for excerpt, values in replay(self._program, ledger, new):
            try:
                on_captured, on_drawn = self._compared(ledger, excerpt, values)
            except Exception as error:  # noqa: BLE001 - a failed trial proves nothing: the match is not replaced
                wrong[excerpt.step.rule, excerpt.step.nodes] = _unforeseen(excerpt.step, error)
                continue
            if difference := on_captured.difference or on_drawn.difference:
                wrong[excerpt.step.rule, excerpt.step.nodes] = _miss(excerpt, difference)
            else:
                errors = (_rounded(on_captured.rmse), _rounded(on_captured.rmse_matched))
                self.figures[repr(excerpt.step)] = Trial(on_captured.equal, *errors, on_drawn.passed)
        return wrong

    def _compared(self, ledger: Ledger, excerpt: Excerpt, captured: Sequence[Any]) -> tuple[Compared, _Drawn]:
        """Compares the replacement on the captured values and, if there is no difference, on random values."""
        compare = COMPARISONS[excerpt.step.draws]
        found = compare(excerpt.before, excerpt.after, captured, ordinary=True, fp64_only=bool(excerpt.step.literals))
        if found.difference:
            what = f"{found.difference}; captured values, {_given(excerpt, captured)}"
            return replace(found, difference=what), _Drawn()
        alike = kind(ledger, excerpt, captured)
        if alike not in self._kinds:
            passed, difference = 0, ""
            for result in self._on_drawn(ledger, excerpt, captured):
                if difference := result.difference:
                    break
                passed += result.ran
            self._kinds[alike] = _Drawn(difference, passed)
        return found, self._kinds[alike]

    def _on_drawn(self, ledger: Ledger, excerpt: Excerpt, captured: Sequence[Any]) -> Iterator[Compared]:
        """Compares the replacement with the matched ops on each kind of random operands."""
        rule, edges = self._rules[excerpt.step.rule], edges_of((excerpt.before, excerpt.after), captured)
        for how in hard(ledger, excerpt, rule, edges):
            found = None
            for operands in draws(ledger, excerpt, captured, how, edges, rule.domain):
                found = _on_operands(excerpt, how, operands)
                if found.ran and not found.difference:
                    break
            if found:
                yield found


def _on_operands(excerpt: Excerpt, how: Hard, operands: Sequence[Any]) -> Compared:
    found = COMPARISONS[excerpt.step.draws](
        excerpt.before,
        excerpt.after,
        operands,
        ordinary=how.values in ORDINARY,
        overflowing=how.values in OVERFLOWING,
        fp64_only=bool(excerpt.step.literals),
    )
    what = f"{found.difference}; {how}, {_given(excerpt, operands)}" if found.difference else ""
    return replace(found, difference=what)


def _rounded(error: float | None) -> float | None:
    """Returns an error with three digits, which are the same on similar machines. None if it is not finite."""
    return None if error is None or not math.isfinite(error) else float(f"{error:.2e}")


def _unforeseen(step: Step, error: Exception) -> Miss:
    if isinstance(error, FuseconvError) or is_out_of_memory(error):
        raise error
    return unforeseen.miss(step.rule, step.nodes, "", error)


def _given(excerpt: Excerpt, operands: Sequence[Any]) -> str:
    tensors = {
        node.name: value
        for node, value in zip(excerpt.operands, operands, strict=True)
        if isinstance(value, torch.Tensor)
    }
    specs = [
        TensorSpec(name, SHORT_DTYPES.get(str(value.dtype), str(value.dtype)), tuple(value.shape))
        for name, value in tensors.items()
    ]
    return ", ".join(described(specs, list(tensors.values())))


def _miss(excerpt: Excerpt, difference: str) -> Miss:
    """Creates the miss that reports a match whose replacement failed the numerical test.

    If literals of the program differ from the rule's literals, the miss reports the literals as the cause. Otherwise
    the miss reports that the rule is wrong at this match.
    """
    step, where = excerpt.step, source_line(excerpt.first)
    if step.literals:
        pairs = [(f"the literal {expected!r}", repr(actual)) for actual, expected in dict.fromkeys(step.literals)]
        expected, found = (" and ".join(words) for words in zip(*pairs, strict=True))
        reason = f"expected {expected}, found {found}, which shows in the result: {difference}"
        return Miss(step.rule, step.nodes[-1], reason, expected, found, where, refused=True)
    return Miss(
        step.rule,
        step.nodes[-1],
        f"the numerical test gives a different result: {difference}",
        "the result of the matched ops, with a similar error against float64",
        difference.partition("; ")[0].partition(": ")[2] or difference,
        where,
        refused=True,
        rejected=True,
    )
