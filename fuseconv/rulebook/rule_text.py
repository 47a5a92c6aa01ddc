"""The text of a rule: SSA lines and conditions. `ast` parses them into terms, which are never evaluated as Python.

A term is an argument of an op call or an operand of a condition: a name, a literal, a list, or a function call.

    h = aten.linear.default(x, w, b)                                an op of any torch.ops namespace
    y, s = fuseconv.add_layer_norm.default(x, r, w, b, eps)         several results
    _ = aten._assert_tensor_metadata.default(x, ...)                `_` is anything, `...` is every further argument
    y = product(x, s, 0.5)                                          multiplications, in any order
    y = fuseconv.linear_act.default(h, w, b, act=gelu_of(mode))     a function of predicates.py
    act = 'relu'                                                    a name for a literal
    v: constant = aten.t.default(w)                                 computed at conversion, from constants
    *y, = aten.split_with_sizes.default(h, [*size(w, 0)], -1)       one result per merged match
    dtype(x) in f16 bf16 f32                                        a condition of `where`

Nothing here imports torch.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeAlias

from fuseconv.contract.dtypes import DTYPES

MAX_LENGTH = 400
"""The maximum length of a line in characters. It limits the nesting, because `ast` is not safe for hostile text."""

PRODUCT = "product"
"""The op of a pattern line that matches multiplications in any order: `product(TENSOR, ..., NUMBER, times=NUMBER)`."""

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in")
_COMPARISON = re.compile(r"^(?P<left>.+?)\s*(?P<comparison>==|!=|<=|>=|<|>|\bin\b)\s*(?P<right>.+)$")
_LINE = "write NAME = NAMESPACE.OP.OVERLOAD(ARGUMENTS), for example y = aten.gelu.default(h, approximate=mode)"
_TERM = "an argument is a name, a number, a 'string', None, True, False, a dtype such as f32, or a [list] of these"


class RuleTextError(ValueError):
    """A line or condition does not follow the grammar. `column` is the offset of the error in characters."""

    def __init__(self, what: str, column: int = 0, fix: str = _LINE) -> None:
        super().__init__(what)
        self.what = what
        self.column = column
        self.fix = fix


@dataclass(frozen=True)
class Name:
    """A value bound by a line, or a pattern variable. `_` matches anything."""

    id: str


@dataclass(frozen=True)
class Literal:
    """A Python literal, or a dtype under its short name."""

    value: bool | int | float | str | None
    is_dtype: bool = False


@dataclass(frozen=True)
class Items:
    """A list of terms."""

    items: tuple[Term, ...]


@dataclass(frozen=True)
class Each:
    """A list `[*term]`, which contains the value of the term in each of the merged matches."""

    term: Term


@dataclass(frozen=True)
class Apply:
    """A call of a function in predicates.py."""

    function: str
    args: tuple[Term, ...]
    column: int = 0


Term: TypeAlias = Name | Literal | Items | Each | Apply


@dataclass(frozen=True)
class Call:
    """A call of an op. If `rest` is true, each omitted argument matches any value."""

    op: str
    args: tuple[Term, ...]
    kwargs: tuple[tuple[str, Term], ...]
    rest: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that occur in the arguments, as `names_of` yields them."""
        return tuple(name for inner in _parts(self) for name in names_of(inner))


@dataclass(frozen=True)
class Line:
    """An assignment `targets = value`. Several targets, or a trailing comma, unpack the results of an op.

    Attributes:
        targets: the bound names.
        unpacks: whether the targets unpack the results of one op.
        value: the op call, or the term that the target stands for.
        constant: whether the op is evaluated at conversion instead of at run time.
        each: whether the line has a single, starred target that binds one result per merged match.
    """

    targets: tuple[str, ...]
    unpacks: bool
    value: Call | Term
    constant: bool = False
    each: bool = False


@dataclass(frozen=True)
class Condition:
    """A condition of `where`: a function call or name `left`, or a comparison `left comparison right`."""

    left: Apply | Name
    comparison: str | None
    right: Term | None


@lru_cache(4096)
def parse_line(text: str) -> Line:
    """Parses one SSA line.

    Raises:
        RuleTextError: the text is not an SSA line.
    """
    statements = check_text(text)
    match statements:
        case [ast.Assign(targets=[target], value=value)]:
            constant = False
        case [ast.AnnAssign(target=target, annotation=ast.Name(id="constant"), value=ast.expr() as value)]:
            constant = True
        case _:
            raise RuleTextError("the line must be a single assignment")
    match target:
        case ast.Tuple(elts=[ast.Starred(value=name)]):
            return Line((_identifier(name),), True, _value(value), constant, each=True)
        case ast.Tuple(elts=names):
            return Line(tuple(_identifier(name) for name in names), True, _value(value), constant)
        case name:
            return Line((_identifier(name),), False, _value(value), constant)


def written(line: Line) -> str:
    """Writes a parsed line as text. `parse_line` parses this text to an equal line."""
    targets = ", ".join(line.targets) + ("," if line.unpacks and len(line.targets) == 1 else "")
    value = line.value
    if isinstance(value, Call):
        words = [*map(written_term, value.args), *(f"{name}={written_term(term)}" for name, term in value.kwargs)]
        text = f"{value.op}({', '.join(words)})"
    else:
        text = written_term(value)
    return f"{'*' if line.each else ''}{targets}{': constant' if line.constant else ''} = {text}"


def written_term(term: Term) -> str:
    """Writes a parsed term in the syntax of rule lines."""
    match term:
        case Name(id=name):
            return name
        case Literal(value=value, is_dtype=is_dtype):
            return str(value) if is_dtype else repr(value)
        case Items(items=items):
            return f"[{', '.join(map(written_term, items))}]"
        case Each(term=inner):
            return f"*{written_term(inner)}"
        case Apply(function=function, args=args):
            return f"{function}({', '.join(map(written_term, args))})"


def parse_condition(text: str) -> Condition:
    """Parses one condition of `where`.

    Raises:
        RuleTextError: the text is not a condition.
    """
    fix = "write PREDICATE(NAME), or PREDICATE(NAME) == VALUE, or PREDICATE(NAME) in VALUE VALUE ..."
    match = _COMPARISON.match(text)
    left = _term(_expression(match["left"] if match else text))
    if not isinstance(left, Apply | Name) or (match is None and isinstance(left, Name)):
        raise RuleTextError("the condition is not a predicate", 0, fix)
    if match is None:
        return Condition(left, None, None)
    if match["comparison"] == "in":
        members = tuple(_term(_expression(word)) for word in match["right"].split())
        if any(not isinstance(member, Literal) for member in members):
            raise RuleTextError("`in` takes literals that are separated by spaces", match.start("right"), fix)
        return Condition(left, "in", Items(members))
    return Condition(left, match["comparison"], _term(_expression(match["right"])))


def names_of(term: Call | Term) -> Iterator[str]:
    """Yields the names that occur in an op call or term, except `_`, in order and with repetitions."""
    if isinstance(term, Name):
        if term.id != "_":
            yield term.id
    elif isinstance(term, Call):
        yield from term.names
    elif not isinstance(term, Literal):
        for inner in _parts(term):
            yield from names_of(inner)


def applications_of(term: Call | Term) -> Iterator[Apply]:
    """Yields the calls of rule functions in an op call or term, outermost first."""
    yield from (inner for inner in terms_of(term) if isinstance(inner, Apply))


def terms_of(term: Call | Term) -> Iterator[Call | Term]:
    """Yields an op call or term and all terms that it contains, outermost first."""
    yield term
    for inner in _parts(term):
        yield from terms_of(inner)


def _parts(term: Call | Term) -> tuple[Term, ...]:
    if isinstance(term, Call):
        return term.args + tuple(value for _, value in term.kwargs)
    if isinstance(term, Items):
        return term.items
    if isinstance(term, Each):
        return (term.term,)
    return term.args if isinstance(term, Apply) else ()


@lru_cache(4096)
def check_text(text: str) -> tuple[ast.stmt, ...]:
    """Parses a line as Python and returns its statements, which are never executed and must not be changed.

    Alternatives and derived examples repeat most of the lines of their rule.

    Raises:
        RuleTextError: the line is too long, contains a character that rules do not allow, or is not valid Python.
    """
    if len(text) > MAX_LENGTH:
        raise RuleTextError(f"the line is longer than {MAX_LENGTH} characters", 0, "write one op per line")
    if bad := re.search(r"[^ -~]|\\", text):
        raise RuleTextError(
            f"the character {bad[0]!r} is not allowed here", bad.start(), "write one line of plain ASCII"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a SyntaxWarning about text that is rejected anyway
            return tuple(ast.parse(text).body)
    except SyntaxError as problem:
        raise RuleTextError(f"syntax error: {problem.msg}", max((problem.offset or 1) - 1, 0)) from None
    except (ValueError, RecursionError, MemoryError):
        raise RuleTextError("syntax error: the line is too large or nested too deeply") from None


def _expression(text: str) -> ast.expr:
    statements = check_text(text.strip())
    if len(statements) != 1 or not isinstance(statements[0], ast.Expr):
        raise RuleTextError("the text is not a single expression", 0, _TERM)
    return statements[0].value


def _identifier(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        raise RuleTextError("the left side is not a name", node.col_offset)
    if node.id in DTYPES or node.id in ("inf", "nan"):
        raise RuleTextError(f"{node.id} is a literal, and cannot be a name", node.col_offset, "choose another name")
    return node.id


def _value(node: ast.expr) -> Call | Term:
    if not isinstance(node, ast.Call) or (isinstance(node.func, ast.Name) and node.func.id != PRODUCT):
        return _term(node)
    rest = bool(node.args) and isinstance(node.args[-1], ast.Constant) and node.args[-1].value is Ellipsis
    args = tuple(_term(argument) for argument in (node.args[:-1] if rest else node.args))
    kwargs = tuple((_keyword(keyword), _term(keyword.value)) for keyword in node.keywords)
    given = [name for name, _ in kwargs]
    if twice := next((name for name in given if given.count(name) > 1), None):
        raise RuleTextError(f"the argument {twice} is given twice", node.col_offset, "give it only once")
    return Call(_op(node.func), args, kwargs, rest)


def _op(node: ast.expr) -> str:
    parts: list[str] = []
    inner = node
    if isinstance(node, ast.Name):
        return node.id
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or len(parts) != 2:
        raise RuleTextError("the name of an op must have three parts, NAMESPACE.OP.OVERLOAD", node.col_offset)
    return ".".join([inner.id, *reversed(parts)])


def _keyword(keyword: ast.keyword) -> str:
    if keyword.arg is None:
        raise _not_a_term(keyword.value, "`**` is not allowed here")
    return keyword.arg


def _term(node: ast.expr) -> Term:
    match node:
        case ast.Name(id="inf" | "nan" as name):
            return Literal(float(name))
        case ast.Name(id=name):
            return Literal(name, is_dtype=True) if name in DTYPES else Name(name)
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return Literal(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return Literal(-float("inf"))
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ):
            return Literal(-value)
        case ast.List(elts=items):
            return Items(tuple(_item(item) for item in items))
        case ast.Call(func=ast.Name(id=function), args=args, keywords=[]):
            return Apply(function, tuple(_term(argument) for argument in args), node.col_offset)
        case _:
            raise _not_a_term(node, f"a {type(node).__name__} cannot be an argument")


def _item(node: ast.expr) -> Term:
    return Each(_term(node.value)) if isinstance(node, ast.Starred) else _term(node)


def _not_a_term(node: ast.expr, what: str) -> RuleTextError:
    return RuleTextError(what, node.col_offset, _TERM)
