"""Detects rewrite cycles without a model: rule A inserts ops that rule B matches, and B inserts ops that A matches.

Rule A leads to rule B if the ops that A inserts contain every op of B's pattern, connected in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from fuseconv.matching.graph import find_op
from fuseconv.matching.pattern import Default, Expected, Pattern
from fuseconv.matching.product import MULTIPLIES, PRODUCT
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.rule import Rule, refuse
from fuseconv.rulebook.rule_text import Apply, Call, Items, Literal, Name, Term


def check_loops(rules: Iterable[tuple[Pattern, ...]]) -> None:
    """Checks that rules of the same stage form no rewrite cycle.

    A rule that merges matches reduces their number, so it leads to no rule. Conditions count as true, because tensors
    are not known here. A condition is false only if it requires a tensor and is applied to a number.

    The result is cached, so that a set of compiled rules is checked only once.

    Args:
        rules: the compiled alternatives of each rule.

    Raises:
        RuleError: the rules form a cycle. The error names the rules of the cycle.
    """
    compiled = tuple(rules)
    key = tuple(map(id, compiled))
    if key in _SOUND:
        return
    _check_loops(compiled)
    if len(_SOUND) >= _MOST:
        _SOUND.clear()
    _SOUND[key] = compiled


_SOUND: dict[tuple[int, ...], tuple[tuple[Pattern, ...], ...]] = {}
"""The sets of rules that contain no cycle. The patterns are kept here, so that no other object gets the same id."""

_MOST = 64


def _check_loops(rules: Iterable[tuple[Pattern, ...]]) -> None:
    by_name = {patterns[0].rule.name: patterns for patterns in rules if patterns}
    called: dict[frozenset[str], list[Pattern]] = {}
    for pattern in chain.from_iterable(by_name.values()):
        called.setdefault(_called(pattern), []).append(pattern)
    leads = {name: list(_leads(patterns[0].rule, called)) for name, patterns in by_name.items()}
    for name, patterns in by_name.items():
        if ring := _ring(name, leads):
            others = " -> ".join([*ring, name])
            what = f"the rules form a rewrite cycle: {others}"
            raise refuse(
                patterns[0].rule, "/replace", what, "remove one of the rules, or add a condition that breaks the cycle"
            )


def _ring(start: str, leads: Mapping[str, list[str]]) -> list[str]:
    """Returns the names of the rules on the shortest cycle through a rule, or an empty list if there is no cycle."""
    ways = [[start]]
    seen = set()
    while ways:
        way = ways.pop(0)
        for name in leads[way[-1]]:
            if name == start:
                return way
            if name not in seen:
                seen.add(name)
                ways.append([*way, name])
    return []


def _called(pattern: Pattern) -> frozenset[str]:
    """Returns the names of the ops that a graph must contain for a pattern to match.

    Product lines are omitted, because any of several ops can form a product.
    """
    return frozenset(str(line.op) for line in pattern.lines if line.op is not PRODUCT)


def _leads(rule: Rule, called: Mapping[frozenset[str], list[Pattern]]) -> dict[str, None]:
    """Returns the names of the rules that a rule leads to, as the keys of a dict.

    Args:
        rule: the rule that inserts ops.
        called: all patterns, grouped by the ops that a graph must contain for the pattern to match.
    """
    if rule.merge or rule.strides == "restored" or rule.stage == "search" or _ends(rule):
        return {}  # these end because of a shared operand, a layout, a limit or a size, which the text does not show
    made = {call.op for _, call in _made(rule)}
    near = chain.from_iterable(patterns for ops, patterns in called.items() if ops <= made)
    found = (pattern for pattern in near if pattern.rule.stage == rule.stage and _contains(rule, pattern))
    return dict.fromkeys(pattern.rule.name for pattern in found)


def _ends(rule: Rule) -> bool:
    return any(isinstance(each.left, Apply) and FUNCTIONS[each.left.function].ends for each in rule.conditions)


def _made(rule: Rule) -> list[tuple[tuple[str, ...], Call]]:
    """Returns each op call that a rule inserts, as (the names bound to the results, the call).

    Lines that are evaluated at conversion insert no call.
    """
    return [
        (line.targets, line.value) for line in rule.replacement if isinstance(line.value, Call) and not line.constant
    ]


def _contains(rule: Rule, pattern: Pattern) -> bool:
    """Returns whether the ops that a rule inserts contain the whole pattern. The pattern may end at any inserted op."""
    made: dict[str, Call | None] = {name: None for line in rule.replacement if line.constant for name in line.targets}
    made |= {name: call for names, call in _made(rule) for name in names}
    for _, call in _made(rule):
        bound: dict[str, Term] = {}
        used: list[Call] = []
        if _fits(pattern, len(pattern.lines) - 1, call, made, bound, used) and len(used) == len(pattern.lines):
            return _may_hold(pattern.rule, bound)
    return False


def _fits(
    pattern: Pattern, number: int, call: Call, made: Mapping[str, Call | None], bound: dict[str, Term], used: list[Call]
) -> bool:
    """Returns whether a line of a pattern may match a call.

    `made` maps the names that the rule binds to their calls, or to None for a value that is computed at conversion.
    """
    line = pattern.lines[number]
    op = find_op(call.op)
    if line.op is PRODUCT:
        used.append(call)
        return op in MULTIPLIES
    if op is not line.op or op is None:
        return False
    used.append(call)
    names = [argument.name for argument in op._schema.arguments if not argument.kwarg_only]
    given = {**dict(zip(names, call.args, strict=False)), **dict(call.kwargs)}
    for name, term in line.terms.items():
        default = next(argument.default_value for argument in op._schema.arguments if argument.name == name)
        if not _term_fits(pattern, term, given.get(name, Default(default)), made, bound, used):
            return False
    return True


def _term_fits(
    pattern: Pattern,
    term: Expected,
    actual: Expected,
    made: Mapping[str, Call | None],
    bound: dict[str, Term],
    used: list[Call],
) -> bool:
    if isinstance(term, Name) and term.id in pattern.places:
        call = made.get(actual.id) if isinstance(actual, Name) else None
        return call is not None and _fits(pattern, pattern.places[term.id][0], call, made, bound, used)
    if isinstance(term, Name):
        if isinstance(actual, Default):
            actual = Literal(actual.value) if isinstance(actual.value, bool | int | float | str | None) else Name("_")
        return term.id == "_" or bound.setdefault(term.id, actual) == actual
    if isinstance(term, Literal) and isinstance(actual, Name) and actual.id in made:
        return False  # a result of an op is a tensor, and no literal
    if isinstance(actual, Name | Apply) or isinstance(term, Items) or isinstance(actual, Items):
        return True
    return bool(_value(term) == _value(actual))


def _value(term: Expected) -> object:
    return term.value if isinstance(term, Default | Literal) else term


def _may_hold(rule: Rule, bound: Mapping[str, Term]) -> bool:
    """Returns whether the conditions of a rule can hold. A condition that requires a tensor is false for a number."""
    for condition in rule.conditions:
        if isinstance(condition.left, Apply) and FUNCTIONS[condition.left.function].tensors:
            for operand in condition.left.args:
                if isinstance(operand, Name) and isinstance(bound.get(operand.id), Literal | Apply):
                    return False
    return True
