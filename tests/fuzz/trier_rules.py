"""The part `rules`: each case is one mutated rule; a rule that passes its check is compared here and must be right."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fuseconv.errors import FuseconvError, RuleError
from fuseconv.matching.loops import check_loops
from fuseconv.matching.pattern import compile_rule
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.check_row import CheckRow
from fuseconv.proof.example import parse_example
from fuseconv.proof.rule_check import check_examples
from fuseconv.proof.soundness import NO_PROGRAM, applied
from fuseconv.rulebook.rule import Rule
from fuseconv.rulebook.rule_file import load_rules

from .extremes import wrong
from .mutate import Json, mutated
from .oracle import _full, _short

UNTOUCHED = 0.05
"""The share of rules that are judged as they are."""

EXAMPLES = 2
"""The most examples of a rule: a check takes its time for each."""


class Rules:
    """Tries mutated rules.

    Args:
        seed: of all of them.
    """

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.hits: dict[tuple[str, int], list[tuple[str, ...]]] = {}
        self.rules = [
            rule
            for rule in load_rules("rules/default.json")
            if rule.match and rule.examples.hit and rule.allow is None and rule.draws == "same"
        ]

    def text(self, at: int) -> str:
        """Returns the mutated rule of a number."""
        made = self._made(at)
        return "no example is left" if made is None else f"{made[1]}\n{json.dumps(made[0], indent=1)}"

    def _made(self, at: int) -> tuple[Json, str] | None:
        draw = random.Random(f"{self.seed}:{at}")
        rule = self.rules[at % len(self.rules)]
        texts = list(rule.texts)
        chosen = draw.randrange(len(texts))
        hits = self._hitting(rule, chosen)
        if not hits:
            return None
        value = rule.model_dump(mode="json", exclude_none=True)
        value["match"] = list(texts[chosen])
        value["examples"] = {"hit": [list(one) for one in draw.sample(hits, min(EXAMPLES, len(hits)))], "miss": []}
        if draw.random() < UNTOUCHED:
            return value, "untouched"
        return mutated(value, draw)

    def _hitting(self, rule: Rule, alternative: int) -> list[tuple[str, ...]]:
        key = (rule.name, alternative)
        if key not in self.hits:
            with quiet_torch():
                self.hits[key] = hitting(rule, alternative)
        return self.hits[key]

    def attempt(self, at: int) -> tuple[dict[str, int], list[dict[str, Any]]]:
        """Checks the mutated rule of a number, and judges it if it passes."""
        counts: Counter[str] = Counter()
        made = self._made(at)
        if made is None:
            return {"no example": 1}, []
        value, said = made
        started = time.process_time()
        counts["rules"] += 1
        kind = said.partition(":")[0]
        found: list[dict[str, Any]] = []

        def add(what: str, key: str, words: str) -> None:
            text = json.dumps({"rules": [value]}, indent=1)
            found.append({"kind": what, "key": key, "said": f"{said}\n{words}", "text": text, "suffix": ".json"})

        try:
            rule = Rule.model_validate(value)
            rows = checked(rule)
            failing = next((row for row in rows if not row.ok), None)
            if failing is not None:
                counts[f"{kind}: refused by {failing.check.split()[0]}"] += 1
                if kind == "untouched":
                    add("refused", f"{value['name']}: {failing.check}", failing.detail)
            else:
                how = "proved" if any("modulo" in row.detail for row in rows) else "tried"
                operands, words = self._judged(rule, at)
                counts[f"{kind}: accepted, {how}{', wrong on ' + operands if operands else ''}"] += 1
                if operands:
                    place = "untouched" if kind == "untouched" else "wrong"
                    add("accepted", f"{value['name']}: {place}: {operands}: {kind}", f"{words}\nchecks: {rows}")
        except (FuseconvError, ValueError) as error:
            counts[f"{kind}: refused as {type(error).__name__}"] += 1
            if isinstance(error, FuseconvError) and error.code == "internal":
                add("bug", _short(error), _full(error))
        except Exception as error:  # noqa: BLE001 - each one is a finding
            counts[f"{kind}: bug"] += 1
            add("bug", _short(error), _full(error))
        counts["CPU milliseconds"] += int(1000 * (time.process_time() - started))
        return dict(counts), found

    def _judged(self, rule: Rule, at: int) -> tuple[str, str]:
        draw = random.Random(at)
        patterns = compile_rule(rule)
        with quiet_torch():
            for lines in rule.examples.hit:
                operands, words = wrong(rule, patterns, parse_example(lines), draw)
                if operands:
                    return operands, words
        return "", ""


def checked(rule: Rule) -> Sequence[CheckRow]:
    """Returns the rows of a check of one rule, made in this process.

    Raises:
        RuleError: it is not well formed.
    """
    patterns = compile_rule(rule)
    check_loops([patterns])
    with quiet_torch():
        return list(check_examples(rule))


def hitting(rule: Rule, alternative: int) -> list[tuple[str, ...]]:
    """Lists the examples of a rule that one of its alternatives matches alone."""
    alone = Rule.model_validate(
        {**rule.model_dump(mode="json", exclude_none=True), "match": list(list(rule.texts)[alternative])}
    )
    patterns, found = compile_rule(alone), []
    for lines in rule.examples.hit:
        try:
            if applied(alone, patterns, parse_example(lines), "as written", 0) is not None:
                found.append(tuple(lines))
        except (*NO_PROGRAM, RuleError):
            continue
    return found
