"""Rules checked without a model: their ops exist, they do not go round, and they are right on examples and variants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from fuseconv.errors import RuleError
from fuseconv.matching.graph import Workspace
from fuseconv.matching.loops import check_loops
from fuseconv.matching.match import match
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern, compile_rule
from fuseconv.matching.search import Index
from fuseconv.matching.whole import FINDERS
from fuseconv.proof.algebra import Verdict, prove
from fuseconv.proof.check_row import CheckRow
from fuseconv.proof.example import parse_example
from fuseconv.proof.field import PRIME
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.soundness import NO_PROGRAM, counter_example, pairs
from fuseconv.proof.traced import Traced, trace
from fuseconv.rulebook.rule import Rule, refuse
from fuseconv.rulebook.rule_text import RuleTextError
from fuseconv.sources.quiet import quiet_torch

_SAME = {"same": "same numbers", "any": "same distribution"}
"""What is found of a rule that is right, by what it says of `draws`."""


def check_rules(rules: Sequence[Rule]) -> list[CheckRow]:
    """Checks rules in this process; those that are well formed are tried on their examples and on variants of them.

    Examples are programs, and run: `confined.check_rules` is for rules of anyone's.

    An example to hit must be changed by the rule alone. It, and each variant of it that the rule changes, must give
    what it gave before: see soundness.py. An example to miss must be left alone, for the reason it states.

    Args:
        rules: the rules.

    Returns:
        The rows, in the order of the rules.

    Raises:
        RuleError: an op is unknown or its arguments do not fit, rules go round, or an example is not readable.
    """
    check_loops([compile_rule(rule) for rule in rules])
    with quiet_torch():
        return [row for rule in rules for row in check_examples(rule)]


def check_examples(rule: Rule) -> list[CheckRow]:
    """Checks one rule; see `check_rules`."""
    patterns = compile_rule(rule)
    rows: list[CheckRow] = []
    verdicts: list[Verdict] = []
    for at, lines in enumerate(rule.examples.hit):
        rows += _hit(rule, patterns, lines, at, verdicts)
    if verdicts:
        rows.append(_algebra(rule, verdicts))
    for at, example in enumerate(rule.examples.miss):
        traced = _program(rule, example.program, f"/examples/miss/{at}/program")
        rows.append(_miss(rule, patterns, traced, example.reason, f"miss {at}"))
    return rows


def _program(rule: Rule, lines: Sequence[str], pointer: str) -> Traced:
    try:
        text = parse_example(lines)
        drawn = draw_operands(tuple(text.parameters.values()), 3, "random", 0).tensors
        return trace(text, dict(zip(text.parameters, drawn, strict=True)))
    except RuleTextError as problem:
        raise refuse(rule, pointer, problem.what, problem.fix) from None
    except NO_PROGRAM as problem:
        what = f"the example cannot run: {str(problem).strip().splitlines()[0]}"
        raise RuleError(what, where=rule.locate(pointer), fix="correct its shapes, dtypes or arguments") from None


def _algebra(rule: Rule, verdicts: Sequence[Verdict]) -> CheckRow:
    """The row of what algebra says of all examples: the first that is wrong, and else how many are proved."""
    if wrong := next((verdict for verdict in verdicts if not verdict.ok), None):
        return CheckRow(rule.name, "algebra", False, wrong.detail)
    proved = sum(verdict.applicable for verdict in verdicts)
    silent = next((verdict.detail for verdict in verdicts if not verdict.applicable), "")
    if not proved:
        return CheckRow(rule.name, "algebra", True, silent)
    some = f"{proved} of {len(verdicts)} equal modulo {PRIME}"
    return CheckRow(rule.name, "algebra", True, f"{some}; {silent}" if silent else some)


def _hit(
    rule: Rule, patterns: Sequence[Pattern], lines: Sequence[str], at: int, verdicts: list[Verdict]
) -> Iterator[CheckRow]:
    """The rows of an example to hit: the example itself, and, for the first one, its variants."""
    try:
        text = parse_example(lines)
    except RuleTextError as problem:
        raise refuse(rule, f"/examples/hit/{at}", problem.what, problem.fix) from None
    tried = [
        (pair, [counter_example(pair, draw) for draw in draws])
        for pair, draws in pairs(rule, patterns, text, vary=at == 0)
    ]
    written = [(pair, found) for pair, found in tried if pair.changed == "as written"]
    if not written:
        reasons = (
            "; ".join(_reasons(rule, patterns, _program(rule, lines, f"/examples/hit/{at}")))
            or "its last op is not there"
        )
        yield CheckRow(rule.name, f"hit {at}", False, f"does not apply: {reasons}")
    verdicts += [prove(pair) for pair, _ in written]
    for pair, found in written:
        detail = next(filter(None, found), f"applied {pair.applied} times, {_SAME[rule.draws]}")
        yield CheckRow(rule.name, f"hit {at}", not any(found), detail)
    if others := [found for pair, found in tried if pair.changed != "as written"]:
        wrong = next(filter(None, (reason for found in others for reason in found)), "")
        yield CheckRow(rule.name, "variants", not wrong, wrong or f"applies to {len(others)}, {_SAME[rule.draws]}")


def _miss(rule: Rule, patterns: Sequence[Pattern], traced: Traced, reason: str, check: str) -> CheckRow:
    reasons = _reasons(rule, patterns, traced)
    if not reasons:
        return CheckRow(rule.name, check, False, "applies, or its last op is not there")
    if not any(reason in given for given in reasons):
        return CheckRow(rule.name, check, False, f"left alone, but because {'; '.join(reasons)}")
    return CheckRow(rule.name, check, True, next(given for given in reasons if reason in given))


def _reasons(rule: Rule, patterns: Sequence[Pattern], traced: Traced) -> list[str]:
    """Returns why the rule misses, for each place it might have been; nothing when it applies anywhere."""
    index = Index(Workspace(traced))
    found = FINDERS[rule.finds](index, rule) if rule.finds else itertools.chain(*match(index, patterns))
    misses = [one.miss.reason if isinstance(one, NearMiss) else None for one in found]
    return [] if None in misses else [reason for reason in misses if reason is not None]
