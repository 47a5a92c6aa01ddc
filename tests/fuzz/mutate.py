"""Mutations of rules: one part of a rule is changed, and its examples with it if they must agree."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from typing import Any

Json = dict[str, Any]

KIN = (
    (
        "relu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "hardswish",
        "abs",
        "neg",
        "exp",
        "expm1",
        "erf",
        "square",
        "sqrt",
        "rsqrt",
    ),
    ("floor", "round", "ceil", "trunc", "sign"),
    ("log", "log1p", "log2"),
    ("add", "sub", "mul", "div", "maximum", "minimum", "pow", "atan2", "remainder", "floor_divide"),
    ("gt", "ge", "lt", "le", "eq", "ne"),
    ("sum", "mean", "amax", "amin", "var", "std", "logsumexp", "prod", "any", "all"),
    ("softmax", "log_softmax", "cumsum"),
    ("clamp_min", "clamp_max", "clamp"),
    ("transpose", "swapaxes"),
    ("unsqueeze", "squeeze"),
    ("matmul", "mm", "bmm"),
    ("zeros_like", "ones_like"),
    ("triu", "tril"),
    ("linear_act", "bias_act"),
    ("cat", "stack"),
)
"""Ops that might be taken for one another."""

NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?(e[+-]?\d+)?(?![\w.])")
CALL = re.compile(r"aten\.(\w+?)(_?)\.(\w+)\(")
WORDS = ("'relu'", "'gelu'", "'silu'", "'none'", "'tanh'", "'sigmoid'", "True", "False", "None")
DTYPES = ("f64", "f32", "f16", "bf16", "i64", "i32", "bool")


def mutated(rule: Json, draw: random.Random) -> tuple[Json, str]:
    """Returns a rule with one change, and what it is; now and then with a second."""
    new, said = copy.deepcopy(rule), []
    for _ in range(draw.choice((1, 1, 1, 1, 2))):
        for _ in range(30):
            name = draw.choice(list(CHANGES))
            if found := CHANGES[name](new, draw):
                said.append(f"{name}: {found}")
                break
    return new, "; ".join(said)


def _number(old: str, draw: random.Random) -> str:
    value = float(old)
    if re.fullmatch(r"-?\d+", old):
        return str(draw.choice((int(old) + 1, int(old) - 1, -int(old), 0, 1, 2, -1)))
    return repr(draw.choice((value * 1.001, value * 1.1, -value, value + 1, value / 2, 0.0, 1.0, value * 1.0001)))


def _in_lines(lines: list[str], draw: random.Random, change: Callable[[str], str | None]) -> str:
    """Changes one line, if there is one that can be."""
    for at in draw.sample(range(len(lines)), len(lines)):
        new = change(lines[at])
        if new and new != lines[at]:
            old, lines[at] = lines[at], new
            return f"{old} -> {new}"
    return ""


def _everywhere(rule: Json, draw: random.Random, change: Callable[[str], tuple[str, str] | None]) -> str:
    """Changes one word of a line of `match`, and the same word in the lines of the examples that call the same op."""
    lines: list[str] = rule["match"]
    for at in draw.sample(range(len(lines)), len(lines)):
        found, call = change(lines[at]), CALL.search(lines[at])
        if not found or call is None:
            continue
        old, new = found
        before, lines[at] = lines[at], lines[at].replace(old, new, 1)
        for example in rule["examples"]["hit"]:
            for place, line in enumerate(example):
                if call[0] in line:
                    example[place] = line.replace(old, new, 1)
        return f"{before} -> {lines[at]}, in the examples too"
    return ""


def _one_number(line: str, draw: random.Random) -> tuple[str, str] | None:
    found = list(NUMBER.finditer(line))
    if not found:
        return None
    one = draw.choice(found)
    start = max(0, one.start() - 2)
    return line[start : one.end()], line[start : one.start()] + _number(one[0], draw)


def _op(line: str, draw: random.Random) -> tuple[str, str] | None:
    call = CALL.search(line)
    kin = next((group for group in KIN if call and call[1] in group), None)
    if call is None or kin is None:
        return None
    return f"aten.{call[1]}{call[2]}.", f"aten.{draw.choice([one for one in kin if one != call[1]])}{call[2]}."


def _arguments(line: str, draw: random.Random, how: str) -> str | None:
    head, bracket, rest = line.partition("(")
    if not bracket or not rest.endswith(")"):
        return None
    words = _split(rest[:-1])
    if how == "swap" and len(words) > 1:
        one, other = draw.sample(range(min(len(words), 4)), 2)
        if "=" in words[one] or "=" in words[other] or "..." in (words[one].strip(), words[other].strip()):
            return None
        words[one], words[other] = words[other], words[one]
    elif how == "drop" and len(words) > 1:
        del words[draw.randrange(1, len(words))]
    elif how == "word":
        places = [at for at, word in enumerate(words) if any(one in word for one in WORDS)]
        if not places:
            return None
        at = draw.choice(places)
        old = next(one for one in WORDS if one in words[at])
        words[at] = words[at].replace(old, draw.choice(WORDS))
    elif how == "anything" and len(words) > 1:
        words = [*words[: draw.randrange(1, len(words))], "..."]
    else:
        return None
    return f"{head}({', '.join(words)})"


def _split(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


def _swapped(rule: Json, draw: random.Random) -> str:
    """The same two arguments exchanged in `match` and in the examples."""

    def change(line: str) -> tuple[str, str] | None:
        new = _arguments(line, draw, "swap")
        return (line.partition("(")[2], new.partition("(")[2]) if new else None

    return _everywhere(rule, draw, change)


def _where_removed(rule: Json, draw: random.Random) -> str:
    return f"{rule['where'].pop(draw.randrange(len(rule['where'])))} removed" if rule["where"] else ""


def _where_number(rule: Json, draw: random.Random) -> str:
    def change(line: str) -> str | None:
        found = _one_number(line, draw)
        return line.replace(found[0], found[1], 1) if found else None

    return _in_lines(rule["where"], draw, change)


def _where_comparison(rule: Json, draw: random.Random) -> str:
    signs = ("==", "!=", "<=", ">=")

    def change(line: str) -> str | None:
        old = next((one for one in signs if one in line), None)
        return line.replace(old, draw.choice(signs)) if old else None

    return _in_lines(rule["where"], draw, change)


def _where_dtype(rule: Json, draw: random.Random) -> str:
    def change(line: str) -> str | None:
        return (
            f"{line} {draw.choice(('i64', 'i32', 'bool', 'f16', 'c64', 'u8'))}"
            if "dtype(" in line and " in " in line
            else None
        )

    return _in_lines(rule["where"], draw, change)


def _dtypes(rule: Json, draw: random.Random) -> str:
    """The tensors of all examples of another dtype."""
    to = draw.choice(DTYPES)
    for example in rule["examples"]["hit"]:
        for at, line in enumerate(example):
            example[at] = re.sub(r": (parameter )?(f64|f32|i64)\[", rf": \g<1>{to}[", line)
    return f"examples in {to}"


def _replace(change: Callable[[str, random.Random], str | None]) -> Callable[[Json, random.Random], str]:
    return lambda rule, draw: _in_lines(rule["replace"], draw, lambda line: change(line, draw))


def _number_in(line: str, draw: random.Random) -> str | None:
    found = _one_number(line, draw)
    return line.replace(found[0], found[1], 1) if found else None


def _op_in(line: str, draw: random.Random) -> str | None:
    found = _op(line, draw)
    return line.replace(found[0], found[1], 1) if found else None


CHANGES: dict[str, Callable[[Json, random.Random], str]] = {
    "number of the replacement": _replace(_number_in),
    "op of the replacement": _replace(_op_in),
    "operands of the replacement swapped": _replace(lambda line, draw: _arguments(line, draw, "swap")),
    "argument of the replacement dropped": _replace(lambda line, draw: _arguments(line, draw, "drop")),
    "word of the replacement": _replace(lambda line, draw: _arguments(line, draw, "word")),
    "number matched": lambda rule, draw: _everywhere(rule, draw, lambda line: _one_number(line, draw)),
    "op matched": lambda rule, draw: _everywhere(rule, draw, lambda line: _op(line, draw)),
    "operands matched swapped": _swapped,
    "arguments matched by anything": lambda rule, draw: _in_lines(
        rule["match"], draw, lambda line: _arguments(line, draw, "anything")
    ),
    "condition removed": _where_removed,
    "number of a condition": _where_number,
    "comparison of a condition": _where_comparison,
    "dtype of a condition": _where_dtype,
    "dtype of the examples": _dtypes,
}
"""What can be changed: each changes a rule in place and says what, or nothing where there is no such thing."""
