"""Fragments, the named lines and conditions in `let`, and the expansion of lines that call fragments.

A fragment of lines is called like an op and may have alternatives. A fragment of conditions is called like a predicate:

    "let": {
      "y, act = gate(h)": [["y = aten.relu.default(h)", "act = 'relu'"], ["y = aten.silu.default(h)", "act = 'silu'"]],
      "weights(w, b)": ["is_parameter(w, b)", "rank(w) == 2"]
    }

In a line, `(a | b)` is a choice between terms, and `b?` is an operand that may be None. Both expand to alternatives.
The expansion produces text, which is parsed as rule lines afterwards.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache

from fuseconv.contract.dtypes import DTYPES
from fuseconv.rulebook.rule_names import NamesError
from fuseconv.rulebook.rule_text import PRODUCT, RuleTextError, check_text

MAX_ALTERNATIVES = 64
"""The largest number of alternatives to which one rule may expand."""

MAX_DEPTH = 16
"""The maximum nesting depth of calls between fragments."""

_TOKEN = re.compile(
    r"'[^']*'"  # a string
    r"|[A-Za-z_]\w*(?:\.\w+)+"  # an op
    r"|[A-Za-z_]\w*(?==(?!=))"  # the name of a keyword argument
    r"|[A-Za-z_]\w*(?=\()"  # a function
    r"|(?P<name>[A-Za-z_]\w*)"
)
_OPTIONAL = re.compile(r"(?<![\w.'])(?P<name>[A-Za-z_]\w*)\?")
_WRAPPED = re.compile(r"\((?P<op>[A-Za-z_][\w.]*)\)\.")
_RESERVED = {*DTYPES, "_", "None", "True", "False", "inf", "nan", "in", "constant", PRODUCT}
_HEADER = 'write "RESULTS = NAME(PARAMETERS)" for lines, or "NAME(PARAMETERS)" for conditions'


@dataclass(frozen=True)
class Fragment:
    """Named lines, which may have alternatives, or named conditions.

    Attributes:
        name: the name by which the fragment is called.
        parameters: the names for which a call substitutes its arguments.
        results: the names for which a call substitutes its targets. Empty for conditions.
        alternatives: the alternatives, each a tuple of lines or conditions. Conditions have exactly one.
    """

    name: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    alternatives: tuple[tuple[str, ...], ...]


Fragments = Mapping[str, Fragment]


@contextmanager
def located(pointer: str) -> Iterator[None]:
    """A context manager that adds a JSON pointer to errors raised in the block that do not contain one already."""
    try:
        yield
    except NamesError:
        raise
    except RuleTextError as problem:
        raise NamesError(pointer, problem.what, problem.fix, problem.column) from None


def read_fragment(header: str, body: Sequence[str] | Sequence[Sequence[str]]) -> Fragment:
    """Parses one fragment, which is an entry of the `let` section of a rule file.

    Raises:
        RuleTextError: the header is not `RESULTS = NAME(PARAMETERS)` or `NAME(PARAMETERS)`, or conditions have
            alternatives.
    """
    match _statement(header):
        case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=name), args=args, keywords=[])):
            results = _names(target.elts if isinstance(target, ast.Tuple) else [target])
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args, keywords=[])):
            results = ()
        case _:
            raise RuleTextError("the name of the fragment is malformed", 0, _HEADER)
    nested = bool(body) and not isinstance(body[0], str)
    if nested and not results:
        raise RuleTextError("a fragment of conditions cannot have alternatives", 0, "write one list of conditions")
    alternatives = tuple(tuple(lines) for lines in body) if nested else (tuple(map(str, body)),)
    return Fragment(name, _names(args), results, alternatives)


def expand_lines(lines: Sequence[tuple[str, str]], fragments: Fragments) -> list[list[tuple[str, str]]]:
    """Returns the alternatives to which lines expand, each a list of (line, JSON pointer of its source).

    In the order of the alternatives, the choices of the first line vary slowest.

    Args:
        lines: the lines as (line, JSON pointer).
        fragments: the fragments that the lines may call.

    Raises:
        NamesError: a line does not follow the grammar of this module, or there are too many alternatives.
    """
    taken = {name for text, _ in lines for name in names_in(text)}
    found: list[list[tuple[str, str]]] = [[]]
    for text, pointer in lines:
        grown = []
        for before in found:
            known = taken | {name for one, _ in before for name in names_in(one)}
            with located(pointer):
                for more in _expand(text, fragments, known, 0):
                    grown.append([*before, *((one, pointer) for one in more)])
                    if len(grown) > MAX_ALTERNATIVES:
                        what = f"the lines expand to more than {MAX_ALTERNATIVES} alternatives"
                        raise RuleTextError(what, 0, "split the rule into several")
        found = grown
    return [[*filter(_is_call, one), *(line for line in one if not _is_call(line))] for one in found]


def expand_conditions(
    conditions: Sequence[tuple[str, str]], fragments: Fragments, depth: int = 0
) -> Iterator[tuple[str, str]]:
    """Expands the fragments that conditions call. Yields (condition, JSON pointer of its source in the rule file)."""
    for text, pointer in conditions:
        called = re.fullmatch(r"(?P<name>[A-Za-z_]\w*)\(.*\)", text)
        fragment = fragments.get(called["name"]) if called else None
        if fragment is None:
            yield text, pointer
            continue
        with located(pointer):
            _check_depth(depth, fragment)
            call = _statement(text)
            assert isinstance(call, ast.Expr)
            assert isinstance(call.value, ast.Call)
            given = _arguments(call.value, text, fragment)
        inner = [(with_names(line, given), pointer) for line in fragment.alternatives[0]]
        yield from expand_conditions(inner, fragments, depth + 1)


@lru_cache(4096)
def names_in(text: str) -> tuple[str, ...]:
    """Returns the names of values and variables in a line or condition, in order and with repetitions."""
    return tuple(name for match in _TOKEN.finditer(text) if (name := match["name"]) and name not in _RESERVED)


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Replaces names in a line or condition by other text. All names are replaced at the same time."""
    return _TOKEN.sub(lambda match: names.get(match["name"] or "", match[0]), text)


def _expand(text: str, fragments: Fragments, taken: set[str], depth: int) -> Iterator[list[str]]:
    """Expands the fragments and choices in one line. Yields the alternatives, each as a list of lines."""
    if optional := _OPTIONAL.search(text):
        name = optional["name"]
        for term, more in ((name, []), ("None", [f"{name} = None"])):
            rest = text[: optional.start()] + term + text[optional.end() :]
            yield from ([*lines, *more] for lines in _expand(rest, fragments, taken, depth))
        return
    statement = _statement(text)
    if "|" in text and (either := next((node for node in ast.walk(statement) if _is_either(node)), None)):
        assert isinstance(either, ast.BinOp)
        start, end = _span(either)
        for option in _options(either):
            begin, stop = _span(option)
            chosen = _WRAPPED.sub(r"\g<op>.", text[:start] + text[begin:stop] + text[end:])
            yield from _expand(chosen, fragments, taken, depth)
        return
    match statement:
        case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id=called)) as call) if called in fragments:
            fragment = fragments[called]
        case _:
            yield [text]
            return
    _check_depth(depth, fragment)
    bound = _names(target.elts if isinstance(target, ast.Tuple) else [target], wild=True)
    if len(bound) != len(fragment.results):
        what = f"{called} returns {len(fragment.results)} values, but {len(bound)} names are given"
        raise RuleTextError(what, 0, f"write {', '.join(fragment.results)} = {called}(...)")
    given = {**_arguments(call, text, fragment), **dict(zip(fragment.results, bound, strict=True))}
    for lines in fragment.alternatives:
        used = Counter(name for line in lines for name in names_in(line))
        local = [name for name in used if name not in given or (given[name] == "_" and used[name] > 1)]
        names = {**given, **{name: _fresh(name, taken) for name in local}}
        known = taken | set(names.values())
        inner: list[list[list[str]]] = []
        for line in lines:
            inner.append(list(_expand(with_names(line, names), fragments, known, depth + 1)))
            known |= {name for option in inner[-1] for text in option for name in names_in(text)}
        yield from _products(inner)


def _products(parts: Sequence[Sequence[Sequence[str]]]) -> Iterator[list[str]]:
    if not parts:
        yield []
        return
    for first in parts[0]:
        for rest in _products(parts[1:]):
            yield [*first, *rest]


def _is_call(line: tuple[str, str]) -> bool:
    """Returns whether a line calls an op. Lines that name a literal are placed after the op calls."""
    return re.search(rf"= *({PRODUCT}\(|[A-Za-z_]\w*\.)", line[0]) is not None


def _is_either(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def _options(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return [*_options(node.left), *_options(node.right)]
    return [node]


def _arguments(call: ast.Call, text: str, fragment: Fragment) -> dict[str, str]:
    words = [text[slice(*_span(argument))] for argument in call.args]
    if call.keywords or len(words) != len(fragment.parameters):
        what = f"{fragment.name} takes only positional arguments, and exactly {len(fragment.parameters)}"
        raise RuleTextError(what, call.col_offset, f"write {fragment.name}({', '.join(fragment.parameters)})")
    return dict(zip(fragment.parameters, words, strict=True))


def _check_depth(depth: int, fragment: Fragment) -> None:
    if depth >= MAX_DEPTH:
        what = f"{fragment.name} calls itself, or fragments call one another more than {MAX_DEPTH} deep"
        raise RuleTextError(what, 0, "write the lines out instead of calling the fragment")


def _fresh(name: str, taken: set[str]) -> str:
    at, made = 0, name
    while made in taken:
        at += 1
        made = f"{name}_{at}"
    return made


def _names(nodes: Sequence[ast.expr], *, wild: bool = False) -> tuple[str, ...]:
    names = tuple(node.id for node in nodes if isinstance(node, ast.Name) and (wild or node.id not in _RESERVED))
    if len(names) != len(nodes) or (not wild and len(set(names)) != len(names)):
        raise RuleTextError("parameters and results must be names, each given only once", 0, _HEADER)
    return names


def _span(node: ast.expr) -> tuple[int, int]:
    assert node.end_col_offset is not None
    return node.col_offset, node.end_col_offset


def _statement(text: str) -> ast.stmt:
    statements = check_text(text)
    if len(statements) != 1:
        raise RuleTextError("the line must be a single assignment")
    return statements[0]
