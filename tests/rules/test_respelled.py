"""Every rule's examples, spelled otherwise, end as the same ops: a fuzzer whose every miss is listed, with its reason.

A copy that has other strides than what it copies may be there for them: only the rules that remove it have to find it.
Of every third example one variant is tried, the same each time; `--all` tries all, which takes minutes.
"""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from support.respelled import RESTRIDED, respelled

from fuseconv.matching.graph import Workspace, op_name
from fuseconv.matching.pattern import Pattern, compile_rule
from fuseconv.matching.plan import run_stage
from fuseconv.proof.example import Text, parse_example
from fuseconv.proof.operands import draw_operands
from fuseconv.proof.soundness import NO_PROGRAM
from fuseconv.proof.traced import Traced, trace
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.rule import STAGES, Rule

RULES = [rule for rule in load_rules() if rule.stage in STAGES]
_REASONS = json.loads((Path(__file__).parent / "respelled_exceptions.json").read_text())
EXCEPTIONS = {name: reason for reason, names in _REASONS.items() for name in names}
"""Variant to the reason why it is not found, as `rule/example/what is changed`."""

FREE = {"alias", "expand", "flatten", "getitem", "permute", "reshape", "squeeze", "t", "transpose", "unflatten"}
FREE |= {"unsqueeze", "view"}
"""Views, which are left where they are: they compute nothing."""

Stages = list[tuple[str, list[tuple[Rule, tuple[Pattern, ...]]]]]


@pytest.fixture(scope="session")
def stages() -> Stages:
    return [(stage, [(rule, compile_rule(rule)) for rule in RULES if rule.stage == stage]) for stage in STAGES]


def traced_of(text: Text) -> Traced:
    drawn = draw_operands(tuple(text.parameters.values()), 3, "random", 0).tensors
    return trace(text, dict(zip(text.parameters, drawn, strict=True)))


def ends_as(traced: Traced, stages: Stages) -> Counter[str]:
    """How often each op is called after all rules; views left out."""
    workspace = Workspace(traced)
    workspace.results = traced.results
    for stage, rules in stages:
        for _ in run_stage(workspace, stage, rules):
            pass
    workspace.clean()
    calls = (op_name(node.target) for node in workspace.graph.nodes if node.op == "call_function")
    return Counter(name for name in calls if name.split(".")[-2 if "." in name else 0] not in FREE)


def variants_of(rule: Rule, number: int) -> dict[str, Text]:
    text = parse_example(rule.examples.hit[number])
    return {f"{rule.name}/{number}/{changed}": variant for changed, variant in respelled(text, traced_of(text))}


def is_found(variant: Text, expected: Counter[str], stages: Stages) -> bool:
    """Whether a variant ends as its example does; one that is no program shows nothing."""
    try:
        traced = traced_of(variant)
    except NO_PROGRAM:
        return True
    return ends_as(traced, stages) == expected


@pytest.mark.fuzz
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.examples.hit], ids=lambda rule: rule.name)
def test_a_variant_of_an_example_ends_as_the_example_does(
    rule: Rule, stages: Stages, request: pytest.FixtureRequest
) -> None:
    missed, listed = set(), set()
    every = request.config.getoption("--all")
    for number, lines in enumerate(rule.examples.hit):
        if not every and number % 3 and not any(name.startswith(f"{rule.name}/{number}/") for name in EXCEPTIONS):
            continue
        expected = ends_as(traced_of(parse_example(lines)), stages)
        variants = variants_of(rule, number)
        exceptions = variants.keys() & EXCEPTIONS.keys()
        names = sorted(name for name in variants.keys() - exceptions if RESTRIDED not in name)
        if not every:
            names = random.Random(f"{rule.name}/{number}").sample(names, min(1, len(names)))
        missed |= {name for name in (*names, *exceptions) if not is_found(variants[name], expected, stages)}
        listed |= exceptions
    assert missed - listed == set(), "mend the rules, or list it with its reason"
    assert listed - missed == set(), "it is found: no exception any more"


def test_every_exception_is_of_a_variant_there_is() -> None:
    rules = {rule.name: rule for rule in RULES}
    for name in EXCEPTIONS:
        rule, number, _ = name.split("/", 2)
        assert name in variants_of(rules[rule], int(number))


@pytest.mark.fuzz
def test_the_fuzzer_makes_every_kind_of_variant() -> None:
    kinds = Counter(name.split("/", 2)[2].split(":")[0] for rule in RULES for name in _names(rule))
    assert min(kinds.values()) > 5, kinds
    assert len(kinds) == 16


def _names(rule: Rule) -> list[str]:
    return [name for number in range(min(2, len(rule.examples.hit))) for name in variants_of(rule, number)]
