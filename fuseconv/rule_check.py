"""Rules checked without a model: their ops exist, they do not go round, and their examples do what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuseconv.capture import Program
from fuseconv.errors import RuleError
from fuseconv.example import example_program
from fuseconv.graph import Workspace
from fuseconv.loops import check_loops
from fuseconv.match import match
from fuseconv.pattern import compile_rule
from fuseconv.plan import plan
from fuseconv.rewrite import rewrite
from fuseconv.rule import Rule, refuse
from fuseconv.rule_text import RuleTextError
from fuseconv.search import Index
from fuseconv.tolerance import compare
from fuseconv.truth import run_in_float64


@dataclass(frozen=True)
class CheckRow:
    """One check of one rule.

    Attributes:
        rule: the rule.
        check: `hit N` or `miss N`, the Nth example, from 0.
        ok: whether it passed.
        detail: what happened.
    """

    rule: str
    check: str
    ok: bool
    detail: str


def check_rules(rules: Sequence[Rule]) -> list[CheckRow]:
    """Checks rules; those that are well formed are run on their examples.

    An example to hit must be changed by the rule alone and give the same numbers, at the tolerances of torch.testing
    for its dtypes; where those have 16 bits, numbers as near to float64. An example to miss must be left alone, for
    the reason it states.

    Returns:
        A row for each example, in the order of the rules.

    Raises:
        RuleError: an op is unknown or its arguments do not fit, rules go round, or an example is not readable.
    """
    check_loops([compile_rule(rule) for rule in rules])
    return [row for rule in rules for row in check_examples(rule)]


def check_examples(rule: Rule) -> list[CheckRow]:
    """Runs one rule on its examples; see `check_rules`."""
    rows = []
    for at, lines in enumerate(rule.examples.hit):
        program = _program(rule, lines, f"/examples/hit/{at}")
        rows.append(_hit(rule, program, f"hit {at}"))
    for at, example in enumerate(rule.examples.miss):
        program = _program(rule, example.program, f"/examples/miss/{at}/program")
        rows.append(_miss(rule, program, example.reason, f"miss {at}"))
    return rows


def _program(rule: Rule, lines: Sequence[str], pointer: str) -> Program:
    try:
        return example_program(lines)
    except RuleTextError as problem:
        raise refuse(rule, pointer, problem.what, problem.fix) from None
    except (RuntimeError, TypeError, ValueError) as problem:
        what = f"the example cannot run: {str(problem).strip().splitlines()[0]}"
        raise RuleError(what, where=rule.locate(pointer), fix="correct its shapes, dtypes or arguments") from None


def _hit(rule: Rule, program: Program, check: str) -> CheckRow:
    device = (rule.devices or ["cpu"])[0]
    found = plan(program, [rule], device=device, targets=rule.targets or (), allow=(rule.allow or "",))
    if not found.steps:
        reasons = "; ".join(_reasons(rule, program)) or "its last op is not there"
        return CheckRow(rule.name, check, False, f"does not apply: {reasons}")
    fused = rewrite(program, found)
    expected = program.exported.module()(*(example.clone() for example in program.examples))
    actual = fused.exported.module()(*(example.clone() for example in program.examples))
    truth = run_in_float64(program, program.examples)
    for values in zip(actual, expected, truth, strict=True):
        if reason := _differs(*values):
            return CheckRow(rule.name, check, False, reason)
    return CheckRow(rule.name, check, True, f"applied {len(found.steps)} times, same numbers")


def _differs(actual: torch.Tensor, expected: torch.Tensor, truth: torch.Tensor) -> str:
    """Says how an output is wrong; one of 16 bits, where the original is itself far off, is judged by the truth."""
    if expected.dtype in (torch.float16, torch.bfloat16):
        return compare(actual, expected, truth).reason
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True)
    except AssertionError as problem:
        return " ".join(str(problem).split())
    return ""


def _miss(rule: Rule, program: Program, reason: str, check: str) -> CheckRow:
    reasons = _reasons(rule, program)
    if not reasons:
        return CheckRow(rule.name, check, False, "applies, or its last op is not there")
    if not any(reason in given for given in reasons):
        return CheckRow(rule.name, check, False, f"left alone, but because {'; '.join(reasons)}")
    return CheckRow(rule.name, check, True, next(given for given in reasons if reason in given))


def _reasons(rule: Rule, program: Program) -> list[str]:
    """Returns why the rule misses, for each place it might have been; nothing when it applies anywhere."""
    sites, near = match(Index(Workspace(program.exported)), compile_rule(rule))
    return [] if sites else [miss.miss.reason for miss in near]
