"""Compiles the patterns of rules: resolves each op name to a registered op, and each argument to its schema name.

A pattern line is one op call in the `match` section of a rule. A term is an argument as a rule writes it: a name, a
literal, or a list of terms.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch

from fuseconv.graph.aten import facts
from fuseconv.matching.graph import find_op, why_no_op
from fuseconv.matching.product import PRODUCT, Product
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.rule import Rule, refuse
from fuseconv.rulebook.rule_text import Apply, Call, Line, Literal, Name, Term
from fuseconv.untrusted.permitted import lookup

OF_RESULT = ("aten.unsqueeze.default", "aten.stack.default")
"""Ops whose `dim` refers to the dims of their result, and not to those of their first operand."""


@dataclass(frozen=True)
class Default:
    """An argument that a pattern line omits. The graph's argument must equal the default value in the schema."""

    value: Any


Expected: TypeAlias = Term | Default


class Slot(NamedTuple):
    """An argument of a pattern line that the search compares with the argument in the graph.

    Attributes:
        name: the name of the argument in the schema of the op.
        label: how messages refer to the argument.
        term: the term that the graph's argument must match.
        is_axis: whether the argument is an axis of the op's first tensor, or of its result.
    """

    name: str
    label: str
    term: Expected
    is_axis: bool


@dataclass(frozen=True)
class OpLine:
    """One line of a pattern, which matches one op call.

    Attributes:
        pointer: the JSON pointer of the line inside its rule.
        op: the op that the line calls, or `PRODUCT` for multiplications in any order.
        terms: maps the name of each argument to the term that the argument must match. An argument that is not listed
            may have any value. In a product line, the names of the factors are their positions, and the name of the
            scalar factor is `times`.
        targets: the names of the results.
        unpacks: whether the op returns several results, each of which a getitem node selects by position.
    """

    pointer: str
    op: torch._ops.OpOverload | Product
    terms: Mapping[str, Expected]
    targets: tuple[str, ...]
    unpacks: bool


@dataclass(frozen=True)
class Pattern:
    """One alternative of a rule's `match`.

    Attributes:
        rule: the rule that contains the pattern.
        lines: the pattern lines in order. The search starts at the last line.
        literals: maps each name of a literal, or of a function of pattern variables, to its term.
        places: maps the name of each result to (index in `lines`, position among the results).
    """

    rule: Rule
    lines: tuple[OpLine, ...]
    literals: Mapping[str, Term]
    places: Mapping[str, tuple[int, int]]

    @cached_property
    def orders(self) -> tuple[tuple[tuple[Slot, ...], ...], ...]:
        """The possible assignments of terms to arguments of the op, for each pattern line.

        A line that calls a commutative op may permit two assignments, and a product line permits none. Each assignment
        lists the arguments in the order of their comparison: literals first, then results of other lines, then pattern
        variables.
        """
        return tuple(
            tuple(tuple(sorted(slots, key=self._hardness)) for slots in _orders(line)) if line.op is not PRODUCT else ()
            for line in self.lines
        )

    @cached_property
    def ops(self) -> frozenset[Any]:
        """The ops that a graph must contain for the pattern to match.

        Product lines are omitted, because any of several ops can form a product.
        """
        return frozenset(line.op for line in self.lines if line.op is not PRODUCT)

    @cached_property
    def follows(self) -> bool:
        """Whether a condition of the rule depends on more nodes than a search examines and records."""
        tests = (condition.left.function for condition in self.rule.conditions if isinstance(condition.left, Apply))
        return any(FUNCTIONS[name].follows for name in tests)

    def _hardness(self, slot: Slot) -> int:
        if isinstance(slot.term, Name) and slot.term.id not in self.literals:
            return 1 if slot.term.id in self.places else 2
        return 0


def _orders(line: OpLine) -> Iterator[list[Slot]]:
    slots = [Slot(name, f"{name} of {line.op}", term, name.startswith("dim")) for name, term in line.terms.items()]
    yield slots
    if not isinstance(line.op, Product) and facts(line.op).commutative:
        first, second = [argument.name for argument in line.op._schema.arguments[:2]]
        if first in line.terms and second in line.terms and line.terms[first] != line.terms[second]:
            other = {first: line.terms[second], second: line.terms[first]}
            yield [slot._replace(term=other.get(slot.name, slot.term)) for slot in slots]


def compile_rule(rule: Rule) -> tuple[Pattern, ...]:
    """Compiles every alternative of a rule for the ops of this process, and checks the ops of its replacement.

    The result, one pattern per alternative, is cached.

    Raises:
        RuleError: an op is unknown, or its arguments or results do not match its schema.
    """
    if id(rule) not in _COMPILED:
        compiled = _compiled(rule)
        if len(_COMPILED) >= _MOST_COMPILED:
            _COMPILED.clear()
        _COMPILED[id(rule)] = rule, compiled
    return _COMPILED[id(rule)][1]


_MOST_COMPILED = 1024
_COMPILED: dict[int, tuple[Rule, tuple[Pattern, ...]]] = {}
"""The compiled patterns, by the id of the rule. The rule is kept here, so that no other object gets the same id."""


def _compiled(rule: Rule) -> tuple[Pattern, ...]:
    for at, line in enumerate(rule.replacement):
        if isinstance(line.value, Call):
            _bind(rule, line, line.value, f"/replace/{at}")
    return tuple(_pattern(rule, at, lines) for at, lines in enumerate(rule.alternatives))


def check_rule_ops(rules: Sequence[Rule]) -> None:
    """Checks that every op in the rules exists and accepts the given arguments.

    Raises:
        RuleError: see `compile_rule`.
    """
    for rule in rules:
        compile_rule(rule)


def _pattern(rule: Rule, at: int, lines: Sequence[Line]) -> Pattern:
    ops: list[OpLine] = []
    literals: dict[str, Term] = {}
    places: dict[str, tuple[int, int]] = {}
    for number, line in enumerate(lines):
        if isinstance(line.value, Call):
            places.update({name: (len(ops), position) for position, name in enumerate(line.targets) if name != "_"})
            ops.append(_bind(rule, line, line.value, rule.pointer_of_line(at, number)))
        elif not isinstance(line.value, Name):
            literals[line.targets[0]] = line.value
    return Pattern(rule, tuple(ops), literals, places)


def _bind(rule: Rule, line: Line, call: Call, pointer: str) -> OpLine:
    if call.op == str(PRODUCT):
        return OpLine(pointer, PRODUCT, _factors(rule, call, pointer), line.targets, unpacks=False)
    op = find_op(call.op)
    if op is None:
        raise refuse(rule, pointer, why_no_op(call.op), _similar(call.op))
    return OpLine(pointer, op, _terms(rule, call, op, pointer), line.targets, _unpacks(rule, line, op, pointer))


def _factors(rule: Rule, call: Call, pointer: str) -> dict[str, Expected]:
    """Returns the tensor factors of a product by position, and its scalar factor (a literal or variable) as `times`."""
    numbers = [term.value for term in call.args if isinstance(term, Literal)]
    factors = [term for term in call.args if isinstance(term, Name)]
    named = dict(call.kwargs)
    fits = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if not factors or call.rest or len(numbers) + len(factors) < len(call.args) or named.keys() - {"times"} or not fits:
        fix = "write product(TENSOR, ..., NUMBER), or product(TENSOR, ..., times=NAME)"
        raise refuse(rule, pointer, "the arguments are not tensors and a number", fix)
    times = named.get("times", Literal(math.prod(map(float, numbers))))  # type: ignore[arg-type]  # fits says so
    return {**{str(at): term for at, term in enumerate(factors)}, "times": times}


def _terms(rule: Rule, call: Call, op: torch._ops.OpOverload, pointer: str) -> dict[str, Expected]:
    arguments = op._schema.arguments
    positional = [argument.name for argument in arguments if not argument.kwarg_only]
    terms: dict[str, Expected] = {}
    for name, term in (*zip(positional, call.args, strict=False), *call.kwargs):
        if name in terms or name not in {argument.name for argument in arguments}:
            what = f"{call.op} has no argument {name}" if name not in terms else f"the argument {name} is given twice"
            raise refuse(rule, pointer, what, f"the schema is {op._schema}")
        terms[name] = term
    for argument in arguments:
        given = terms.get(argument.name)
        if isinstance(given, Literal) and given.value is None and argument.type.kind() != "OptionalType":
            what = f"{call.op} does not accept None for {argument.name}"
            raise refuse(rule, pointer, what, f"the schema is {op._schema}")
    if len(call.args) > len(positional):
        what = f"{call.op} takes {len(positional)} positional arguments, but {len(call.args)} are given"
        raise refuse(rule, pointer, what, f"the schema is {op._schema}")
    for argument in arguments:
        if argument.name not in terms and not call.rest:
            if not argument.has_default_value():
                raise refuse(
                    rule, pointer, f"{call.op} is missing the argument {argument.name}", f"the schema is {op._schema}"
                )
            terms[argument.name] = Default(argument.default_value)
    return terms


def _unpacks(rule: Rule, line: Line, op: torch._ops.OpOverload, pointer: str) -> bool:
    returns = op._schema.returns
    lists = len(returns) == 1 and isinstance(returns[0].type, torch.ListType)
    if line.unpacks and not lists and len(line.targets) != len(returns):
        what = f"{op} returns {len(returns)} results, but {len(line.targets)} names are given"
        raise refuse(rule, pointer, what, "name every result; write `_` for an unused one")
    if not line.unpacks and len(returns) > 1:
        names = ", ".join(f"y{number}" for number in range(len(returns)))
        raise refuse(rule, pointer, f"{op} returns {len(returns)} results", f"write {names} = ...")
    return line.unpacks


def _similar(name: str) -> str:
    if lookup(name) is not None:
        return "use ops that take and return tensors and numbers; see docs/trust.md"
    namespace, packet, _ = name.split(".")
    known = dir(getattr(torch.ops, namespace)) if namespace != "aten" else list(_aten())
    near = difflib.get_close_matches(packet, known, 1)
    if near and (overloads := getattr(getattr(torch.ops, namespace), near[0]).overloads()):
        return "did you mean " + " or ".join(f"{namespace}.{near[0]}.{overload}" for overload in overloads[:4]) + "?"
    return f"load the library that registers the ops of {namespace}, or correct the name"


def _aten() -> Iterator[str]:
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::"):
            yield schema.name.removeprefix("aten::")
