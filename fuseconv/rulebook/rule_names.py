"""Checks that a rule binds each name exactly once and before its first use. Only the text of the rule is examined."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence

from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.rule_text import (
    PRODUCT,
    Apply,
    Call,
    Condition,
    Each,
    Line,
    Name,
    RuleTextError,
    Term,
    applications_of,
    names_of,
    terms_of,
)


class NamesError(RuleTextError):
    """A name or function in a rule is invalid. `pointer` is the JSON pointer of the line inside the rule."""

    def __init__(self, pointer: str, what: str, fix: str, column: int = 0) -> None:
        super().__init__(what, column, fix)
        self.pointer = pointer


def check_names(
    alternatives: Sequence[Sequence[Line]],
    replacement: Sequence[Line],
    conditions: Sequence[Condition],
    pointer_of_line: Callable[[int, int], str],
    shared: Sequence[str] = (),
) -> None:
    """Checks the names of one rule.

    Args:
        alternatives: the parsed lines of `match`, one sequence per alternative.
        replacement: the parsed lines of `replace`.
        conditions: the parsed conditions of `where`.
        pointer_of_line: maps (alternative, line) to the JSON pointer of the line inside the rule.
        shared: the variables on which merged matches agree. Empty for a rule that does not merge matches.

    Raises:
        NamesError: a name is unbound, is bound twice, is used before the line that binds it, is replaced but not bound,
            or is bound but not replaced; a function is unknown or is called with the wrong number of arguments;
            or a line of the pattern shares no value with the other lines.
    """
    if not alternatives:
        raise NamesError("/match", "the rule has no pattern", "write `match` or `finds`")
    replaced = {name for line in replacement for name in line.targets}
    bound = [
        _check_alternative(lines, [pointer_of_line(at, number) for number in range(len(lines))], replaced)
        for at, lines in enumerate(alternatives)
    ]
    captures = set.intersection(*(names for names, _ in bound))
    values = set.intersection(*(names for _, names in bound))
    check_replacement(replacement, captures, values)
    if unknown := sorted(set(shared) - captures):
        raise NamesError("/merge", *_unbound(unknown[0], values, captures))
    for at, line in enumerate(replacement):
        if not shared and (line.each or any(isinstance(term, Each) for term in terms_of(line.value))):
            raise NamesError(
                f"/replace/{at}", "`*` is only valid in a rule with `merge`", "add `merge`, or write each line out"
            )
    for at, condition in enumerate(conditions):
        _check_condition(condition, captures | values, f"/where/{at}")


def _check_alternative(lines: Sequence[Line], pointers: Sequence[str], replaced: set[str]) -> tuple[set[str], set[str]]:
    """Checks one alternative. Returns its pattern variables and named literals, and the names bound by op lines."""
    places: dict[str, int] = {}
    for number, line in enumerate(lines):
        for name in line.targets:
            if name in places:
                raise NamesError(pointers[number], f"{name} is bound twice", "give each value its own name")
            if name != "_":
                places[name] = number
    captures: set[str] = set()
    values: set[str] = set()
    read: set[str] = set()
    for number, line in enumerate(lines):
        for name in names_of(line.value):
            if name in places and places[name] >= number:
                what = f"{name} is used before the line that binds it"
                raise NamesError(pointers[number], what, "reorder the lines: a pattern cannot have a cycle")
            captures.update({name} - places.keys())
            read.add(name)
        for name in line.targets:
            (values if isinstance(line.value, Call) else captures).update({name} - {"_"})
        _check_pattern_value(line, pointers[number])
    given = {name for line in lines if isinstance(line.value, Call) for name in names_of(line.value)} - values
    for number, line in enumerate(lines):
        if not isinstance(line.value, Call):
            if unknown := next((name for name in names_of(line.value) if name not in given), None):
                what = f"{unknown} is not an operand of a matched op"
                raise NamesError(pointers[number], what, "use a variable that an op line of `match` binds")
            given.update(line.targets)
    _check_connected(lines, pointers)
    for name in sorted(values - read - replaced, key=places.__getitem__):
        fix = f"bind {name} in `replace`, or write _ instead of the name"
        raise NamesError(pointers[places[name]], f"{name} is bound, but neither read nor replaced", fix)
    return captures, values


def _check_pattern_value(line: Line, pointer: str) -> None:
    if line.constant or line.each or any(isinstance(term, Each) for term in terms_of(line.value)):
        raise NamesError(pointer, "`constant` and `*` are only valid in `replace`", "remove them")
    if isinstance(line.value, Call):
        if function := next(applications_of(line.value), None):
            fix = f"bind its result on a line of its own: NAME = {function.function}(...)"
            what = f"{function.function}(...) cannot be nested in an op of the pattern"
            raise NamesError(pointer, what, fix, function.column)
    elif isinstance(line.value, Name) or line.unpacks:
        what = "the line neither matches an op nor names a literal"
        raise NamesError(pointer, what, "write NAME = NAMESPACE.OP.OVERLOAD(...)")
    else:
        _check_functions(line.value, pointer)


def _check_connected(lines: Sequence[Line], pointers: Sequence[str]) -> None:
    """Checks that the ops of a pattern are connected through shared values.

    Unconnected ops would match independently, so the pattern would match every combination of such ops in a graph.
    """
    words = {
        number: set(names_of(line.value)) | set(line.targets) - {"_"}
        for number, line in enumerate(lines)
        if isinstance(line.value, Call)
    }
    if not words:
        raise NamesError(pointers[0], "the pattern contains no op", "match at least one op")
    _, reached = words.popitem()
    while near := [other for other, names in words.items() if names & reached]:
        for other in near:
            reached |= words.pop(other)
    for number in words:
        fix = "connect the lines by a value, or write two rules"
        raise NamesError(pointers[number], "the line shares no value with the others", fix)


def check_replacement(lines: Sequence[Line], captures: set[str], values: set[str]) -> None:
    """Checks the names in the lines of `replace`.

    Args:
        lines: the parsed lines of `replace`.
        captures: the pattern variables and named literals, which the lines may use.
        values: the names that op lines of `match` bind. A line of `replace` that binds such a name replaces its value.

    Raises:
        NamesError: see `check_names`.
    """
    known = set(captures)
    made: dict[str, str] = {}
    used: set[str] = set()
    for at, line in enumerate(lines):
        pointer = f"/replace/{at}"
        if isinstance(line.value, Call) and line.value.rest:
            fix = "write every argument that differs from its default"
            raise NamesError(pointer, "`...` is not allowed in `replace`", fix)
        if isinstance(line.value, Call) and line.value.op == PRODUCT:
            fix = "write aten.mul.Tensor(...), which fixes the order"
            raise NamesError(pointer, "`product` is not allowed in `replace`", fix)
        if not isinstance(line.value, Call | Name):
            raise NamesError(
                pointer, "the line computes no tensor", "write NAME = NAMESPACE.OP.OVERLOAD(...), or NAME = NAME"
            )
        for name in names_of(line.value):
            if name not in known:
                raise NamesError(pointer, *_unbound(name, values, captures))
            used.add(name)
        _check_functions(line.value, pointer)
        for call in applications_of(line.value):
            if late := next((name for name in names_of(call) if name in made), None):
                what = f"{call.function} cannot use {late}, which a line of `replace` computes"
                raise NamesError(pointer, what, "use a value of the match", call.column)
        for name in line.targets:
            if name in made or name in captures:
                raise NamesError(pointer, f"{name} is bound twice", "give each value its own name")
            if name != "_":
                made[name] = pointer
                known.add(name)
    for name, pointer in made.items():
        if name not in values and name not in used:
            fix = f"bind one of {', '.join(sorted(values))}, which every alternative binds"
            raise NamesError(pointer, f"{name} replaces nothing: no line of `match` binds it", fix)


def _unbound(name: str, values: set[str], captures: set[str]) -> tuple[str, str]:
    if name in values:
        return (
            f"{name} is inside the match and does not exist after it",
            "recompute it, or bind its operands in `match`",
        )
    near = difflib.get_close_matches(name, captures, 1)
    return (
        f"{name} is not bound in every alternative of `match`",
        f"write {near[0]}" if near else "use a name that occurs in the lines of `match`",
    )


def _check_functions(value: Call | Term, pointer: str) -> None:
    for function in applications_of(value):
        _check_function(function, pointer)
        if FUNCTIONS[function.function].kind != "value":
            what = f"{function.function} is a test and returns no value"
            raise NamesError(pointer, what, f"move {function.function} to `where`", function.column)


def _check_function(function: Apply, pointer: str) -> None:
    known = FUNCTIONS.get(function.function)
    if known is None:
        near = difflib.get_close_matches(function.function, FUNCTIONS, 1)
        fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(FUNCTIONS))}"
        raise NamesError(pointer, f"unknown predicate or function {function.function}", fix, function.column)
    if len(function.args) < known.least or (known.most is not None and len(function.args) > known.most):
        what = f"{function.function} does not take {len(function.args)} arguments"
        raise NamesError(pointer, what, f"write {known.usage}", function.column)


def _check_condition(condition: Condition, known: set[str], pointer: str) -> None:
    for term in (condition.left, condition.right):
        if term is None:
            continue
        for function in applications_of(term):
            _check_function(function, pointer)
        for name in names_of(term):
            if name not in known:
                raise NamesError(pointer, *_unbound(name, set(), known))
    if isinstance(condition.left, Apply):
        known_as = FUNCTIONS[condition.left.function]
        if (known_as.kind == "value") != (condition.comparison is not None):
            fix = f"write {known_as.usage} == VALUE" if known_as.kind == "value" else f"write {known_as.usage} alone"
            raise NamesError(pointer, f"{condition.left.function} is a {known_as.kind}", fix)
