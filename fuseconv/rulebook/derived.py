"""Derives example programs from a rule: each alternative of the pattern becomes a program in the rule's context.

The context lists the inputs of the program and the values of pattern variables that are not tensors. If the match is
not the whole program, the context also contains the lines before and after the match:

    "context": ["x: f64[n, 8]", "w: parameter f64[4, 8]", "mode = 'none'", "mode = 'tanh'"]

A written example needs only the lines that differ from the first example: each line replaces the line that binds the
same name. A complete program is used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from fuseconv.rulebook.rule_text import (
    PRODUCT,
    Call,
    Items,
    Line,
    Literal,
    Name,
    RuleTextError,
    Term,
    names_of,
    parse_line,
    written,
    written_term,
)

_TENSOR = re.compile(r"^(?P<name>[A-Za-z_]\w*): .*\]$")
_FIX = "give it a value in `context`, for example `eps = 1e-6`"


def derived_examples(
    alternatives: Sequence[Sequence[Line]], results: Sequence[str], context: Sequence[str]
) -> list[list[str]]:
    """Creates one program per alternative of `match`. If a variable has several values, creates one per value.

    Args:
        alternatives: the parsed lines of `match`.
        results: the names of the replaced values, which each program returns.
        context: the context described above. If it is empty, no programs are returned.

    Raises:
        RuleTextError: the context contains no value for a required argument.
    """
    if not context:
        return []
    values: dict[str, list[str]] = {}
    around = []
    for text in context:
        line = None if _is_tensor(text) or text.startswith("return ") else parse_line(text)
        if line is not None and not isinstance(line.value, Call):
            values.setdefault(line.targets[0], []).append(written_term(line.value))
        else:
            around.append(text)
    programs: list[list[str]] = []
    for lines in alternatives:
        read = {name for line in lines for name in names_of(line.value)}
        many = max((len(values[name]) for name in read if name in values), default=1)
        for at in range(many):
            given = {name: words[min(at, len(words) - 1)] for name, words in values.items()}
            program = _program(lines, results, around, given)
            if program not in programs:
                programs.append(program)
    return programs


def with_differences(base: Sequence[str], lines: Sequence[str]) -> list[str]:
    """Replaces lines of a program by new lines that bind the same names, and removes lines whose results are unused.

    If the new lines are a complete program, they are returned as they are.

    Args:
        base: the lines of the program to change.
        lines: the new lines. Each replaces the line of `base` that binds the same name, or is added.

    Raises:
        RuleTextError: neither program contains a `return` line, or a line does not follow the grammar.
    """
    bound = {name for line in lines for name in _bound(line)}
    if "return" in bound and all(name in bound for line in lines for name in _read(line)):
        return list(lines)
    new = {_bound(line): line for line in lines}
    merged = [new.get(_bound(line), line) for line in base]
    merged += [line for line in lines if line not in merged]
    return _ordered(merged, set(lines))


def _program(
    lines: Sequence[Line], results: Sequence[str], around: Sequence[str], given: Mapping[str, str]
) -> list[str]:
    tensors = {name for text in around for name in _bound(text)}
    bound = set(tensors)
    body: list[str] = []
    for line in lines:
        if isinstance(line.value, Call):
            if line.value.op == PRODUCT:
                factors = _factors(line.value, given, bound)
                if len(factors) == 1:
                    given = {**given, line.targets[0]: factors[0]}
                body += _product(line.targets[0], factors)
            else:
                body.append(_called(line, line.value, given, bound))
            bound |= set(line.targets)
    returned = [text for text in around if text.startswith("return ")] or [f"return {', '.join(results)}"]
    return _ordered([*(text for text in around if not text.startswith("return ")), *body, *returned], set())


def _called(line: Line, call: Call, given: Mapping[str, str], bound: set[str]) -> str:
    """Writes an op line of the pattern as text, with each pattern variable replaced by its value in the context."""
    words = [_word(term, given, bound) for term in call.args]
    while words and words[-1] is None:
        words.pop()
    if None in words:
        missing = written_term(call.args[words.index(None)])
        raise RuleTextError(f"no example can be derived: {missing} in `{written(line)}` has no value", 0, _FIX)
    named = [(name, _word(term, given, bound)) for name, term in call.kwargs]
    text = ", ".join([*filter(None, words), *(f"{name}={word}" for name, word in named if word is not None)])
    targets = ", ".join(name if name != "_" else f"unused{at}" for at, name in enumerate(line.targets))
    return f"{targets}{',' if line.unpacks and len(line.targets) == 1 else ''} = {call.op}({text})"


def _factors(call: Call, given: Mapping[str, str], bound: set[str]) -> list[str]:
    terms = [*call.args, *(term for _, term in call.kwargs)]
    return [word for term in terms if (word := _word(term, given, bound)) is not None]


def _product(target: str, factors: Sequence[str]) -> list[str]:
    """Returns lines that multiply the factors of a product from left to right. A single factor requires no line."""
    if len(factors) == 1:
        return []
    names = [*(f"{target}{at}" for at in range(1, len(factors) - 1)), target]
    lefts = [factors[0], *names[:-1]]
    return [
        f"{name} = aten.mul.Tensor({left}, {right})"
        for name, left, right in zip(names, lefts, factors[1:], strict=True)
    ]


def _word(term: Term, given: Mapping[str, str], bound: set[str]) -> str | None:
    """Writes an argument of a pattern line as text. Returns None if the argument has no value and must be omitted."""
    match term:
        case Name(id=name):
            return given.get(name, name if name in bound else None)
        case Literal():
            return written_term(term)
        case Items(items=items):
            words = [_word(item, given, bound) for item in items]
            return None if None in words else f"[{', '.join(filter(None, words))}]"
        case _:
            return None


def _ordered(lines: Sequence[str], kept: set[str]) -> list[str]:
    """Reorders lines so that each name is bound before its first use.

    Lines whose results are unused are dropped unless they are in `kept`.
    """
    last = next((line for line in lines if line.startswith("return ")), None)
    if last is None:
        raise RuleTextError(
            "the program does not end with `return NAMES`", 0, "add a `return` line, or give the values in `context`"
        )
    makers = {name: line for line in lines for name in _bound(line)}
    needed = {last, *kept}
    rest = list(needed)
    while rest:
        for name in _read(rest.pop()):
            maker = makers.get(name)
            if maker is not None and maker not in needed:
                needed.add(maker)
                rest.append(maker)
    waiting = [line for line in lines if line in needed and line != last]
    done: list[str] = []
    known: set[str] = set()
    while waiting:
        ready = next((line for line in waiting if all(n in known or n not in makers for n in _read(line))), waiting[0])
        waiting.remove(ready)
        done.append(ready)
        known |= set(_bound(ready))
    return [*done, last]


def _is_tensor(text: str) -> bool:
    return _TENSOR.match(text) is not None


@lru_cache(4096)
def _bound(text: str) -> tuple[str, ...]:
    if text.startswith("return "):
        return ("return",)
    return (text.partition(":")[0],) if _is_tensor(text) else parse_line(text).targets


@lru_cache(4096)
def _read(text: str) -> tuple[str, ...]:
    if text.startswith("return "):
        return tuple(name.strip() for name in text.removeprefix("return ").split(","))
    return () if _is_tensor(text) else tuple(names_of(parse_line(text).value))
