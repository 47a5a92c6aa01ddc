"""Checks rules without a model: the ops exist, no rules form a rewrite cycle, and the examples are correct."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from fuseconv.errors import RuleError
from fuseconv.matching.graph import Workspace
from fuseconv.matching.loops import check_loops
from fuseconv.matching.match import match
from fuseconv.matching.near_miss import NearMiss
from fuseconv.matching.pattern import Pattern, compile_rule
from fuseconv.matching.search import Index
from fuseconv.matching.whole import FINDERS
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.algebra import Proof, prove
from fuseconv.proof.check_row import CheckRow
from fuseconv.proof.example import parse_example
from fuseconv.proof.field import PRIME
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.soundness import NO_PROGRAM, Pair, counter_example, draws_of, pairs
from fuseconv.proof.traced import Traced, trace
from fuseconv.proof.variants import in_dtypes, variants
from fuseconv.rulebook.rule import Rule, refuse
from fuseconv.rulebook.rule_text import RuleTextError

_SAME = {"same": "same numbers", "any": "same distribution"}
"""Maps each value of a rule's `draws` field to the words that report a correct rule."""


def check_rules(rules: Sequence[Rule]) -> list[CheckRow]:
    """Checks rules in this process, on their examples and on variants of the examples.

    Examples are programs, and this function runs them. Use `confined.check_rules` for untrusted rules.

    The rule must apply to each `hit` example. The example, and each variant to which the rule applies, must give the
    same results before and after the rewrite; see soundness.py. The rule must not apply to a `miss` example, and must
    report the reason that the example states.

    Args:
        rules: the rules to check.

    Returns:
        One row per check, in the order of the rules.

    Raises:
        RuleError: an op is unknown or its arguments are invalid, rules form a rewrite cycle, or an example is
            malformed.
    """
    check_loops([compile_rule(rule) for rule in rules])
    with quiet_torch():
        return [row for rule in rules for row in check_examples(rule)]


def check_examples(rule: Rule, *, every_dtype: bool = True) -> list[CheckRow]:
    """Checks one rule; see `check_rules`.

    Args:
        rule: the rule to check.
        every_dtype: whether each example is tested in every dtype, and the first one in every variant. If false, each
            example is tested as written on two sets of random operands, and in one variant, which differs from example
            to example: the first example's variant on every set of operands, and the others' on a third of these sets,
            which also differs from example to example. This takes a quarter of the time.

    Returns:
        One row per check.
    """
    patterns = compile_rule(rule)
    rows: list[CheckRow] = []
    tried: list[tuple[Pair, list[str]]] = []
    proofs: list[Proof] = []
    for at, lines in enumerate(rule.examples.hit):
        found = _tried(rule, patterns, lines, at, every_dtype=every_dtype)
        rows.append(_hit(rule, patterns, lines, at, found))
        proofs += [prove(pair) for pair, _ in found if pair.changed == "as written"]
        tried += found
    if others := [found for pair, found in tried if pair.changed != "as written"]:
        rows.append(_row(rule, "variants", f"applies to {len(others)} variants", others))
    if proofs:
        rows.append(_algebra(rule, proofs))
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
        raise RuleError(
            what, where=rule.locate(pointer), fix="correct the example's shapes, dtypes or arguments"
        ) from None


def _algebra(rule: Rule, proofs: Sequence[Proof]) -> CheckRow:
    """Returns the row that reports the algebraic check: the first wrong example, or the number of proved examples."""
    if wrong := next((proof for proof in proofs if not proof.ok), None):
        return CheckRow(rule.name, "algebra", "wrong", wrong.detail)
    proved = sum(proof.applicable for proof in proofs)
    silent = next((proof.detail for proof in proofs if not proof.applicable), "")
    if not proved:
        return CheckRow(rule.name, "algebra", "not run", silent)
    some = f"{proved} of {len(proofs)} equal modulo {PRIME}"
    return CheckRow(rule.name, "algebra", "tried" if silent else "proved", f"{some}; {silent}" if silent else some)


def _tried(
    rule: Rule, patterns: Sequence[Pattern], lines: Sequence[str], at: int, *, every_dtype: bool
) -> list[tuple[Pair, list[str]]]:
    """Tests a `hit` example and its variants.

    Returns each program to which the rule applies, with one text per set of random operands: an empty string if the
    results agree, or a description of the counterexample, after which no more operands are tested.
    """
    try:
        text = parse_example(lines)
    except RuleTextError as problem:
        raise refuse(rule, f"/examples/hit/{at}", problem.what, problem.fix) from None
    changes, few = list(in_dtypes(text) if at else variants(text)), not every_dtype
    if few and changes:
        changes = [changes[at % len(changes)]]
    found = pairs(rule, patterns, text, changes)
    part = 3 if few and at else 1
    return [
        (pair, _counter_examples(pair, few=few and pair.changed == "as written", at=at, part=part)) for pair in found
    ]


def _counter_examples(pair: Pair, *, few: bool, at: int, part: int) -> list[str]:
    """Tests a program on sets of random operands: on two if `few`, or else on one of `part`, of which `at` is one."""
    found: list[str] = []
    draws = draws_of(pair, few=few)
    for draw in draws if few else draws[at % part :: part]:
        found.append(counter_example(pair, draw))
        if found[-1]:
            break
    return found


def _hit(
    rule: Rule,
    patterns: Sequence[Pattern],
    lines: Sequence[str],
    at: int,
    tried: Sequence[tuple[Pair, Sequence[str]]],
) -> CheckRow:
    """Returns the row that reports the check of a `hit` example as written, without its variants."""
    written = [(pair, found) for pair, found in tried if pair.changed == "as written"]
    if not written:
        reasons = _reasons(rule, patterns, _program(rule, lines, f"/examples/hit/{at}")) or [
            "the example does not contain its last op"
        ]
        return CheckRow(rule.name, f"hit {at}", "wrong", f"does not apply: {'; '.join(reasons)}")
    return _row(rule, f"hit {at}", f"applied {written[0][0].applied} times", [found for _, found in written])


def _row(rule: Rule, check: str, done: str, found: Sequence[Sequence[str]]) -> CheckRow:
    """Returns the row that reports the tests of programs on random operands."""
    wrong = next((reason for reasons in found for reason in reasons if reason), "")
    draws = sum(map(len, found))
    detail = wrong or f"{done}, {_SAME[rule.draws]} on {draws} draws"
    return CheckRow(rule.name, check, "wrong" if wrong else "tried", detail, draws)


def _miss(rule: Rule, patterns: Sequence[Pattern], traced: Traced, reason: str, check: str) -> CheckRow:
    reasons = _reasons(rule, patterns, traced)
    if not reasons:
        return CheckRow(rule.name, check, "wrong", "the rule applies, or the example does not contain its last op")
    if not any(reason in given for given in reasons):
        return CheckRow(rule.name, check, "wrong", f"left alone, but for another reason: {'; '.join(reasons)}")
    return CheckRow(rule.name, check, "left alone", next(given for given in reasons if reason in given))


def _reasons(rule: Rule, patterns: Sequence[Pattern], traced: Traced) -> list[str]:
    """Returns one reason per node at which the rule nearly matched, or an empty list if the rule applies anywhere."""
    index = Index(Workspace(traced))
    found = FINDERS[rule.finds](index, rule) if rule.finds else itertools.chain(*match(index, patterns))
    misses = [one.miss.reason if isinstance(one, NearMiss) else None for one in found]
    return [] if None in misses else [reason for reason in misses if reason is not None]
