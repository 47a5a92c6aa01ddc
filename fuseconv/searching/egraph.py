"""An e-graph, implemented by egglog: it stores terms, records which terms are equal, and finds matches of patterns.

The caller identifies terms by numbers. Commands are collected as text in egglog's language, so that a batch of commands
requires only one call of egglog. A term is an expression: a leaf, or an op call on other terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseconv.errors import UnsupportedError

_START = "(sort T) (constructor term (i64) T) (ruleset match) (ruleset order)"


def load_egglog() -> Any:
    """Returns egglog's e-graph class.

    Raises:
        UnsupportedError: egglog is not installed.
    """
    try:
        from egglog.bindings import EGraph as Native
    except ImportError as error:
        fix = "install it with `pip install 'fuseconv[search]'`, or convert with --no-search"
        raise UnsupportedError(f"--search needs the package egglog: {error}", where="--search", fix=fix) from None
    return Native


class EGraph:
    """An e-graph: a set of terms that also records which terms are equal."""

    def __init__(self) -> None:
        self._native = load_egglog()()
        self._declared: set[str] = set()
        self._pending: list[str] = [_START]

    def declare(self, name: str, arity: int, swapped: Sequence[str] | None = None) -> str:
        """Declares an op with a given number of operands, unless declared already, and returns its name in egglog.

        Args:
            name: the name of the op, such as `aten.mm.default`.
            arity: the number of operands.
            swapped: for a commutative op, the operands after the first two, in egglog's language. Swapping the first
                two operands of a call with these further operands gives an equal call. None for other ops.
        """
        head = f"{name}/{arity}"
        if head not in self._declared:
            self._declared.add(head)
            self._pending.append(f"(constructor {head} ({' T' * arity}) T)")
            if swapped is not None:
                one, other = (" ".join([head, *pair, *swapped]) for pair in (("first", "second"), ("second", "first")))
                self._pending.append(f"(rewrite ({one}) ({other}) :ruleset order)")
        return head

    def leaf(self, number: int) -> None:
        """Adds the leaf that the caller identifies by `number`."""
        self._pending.append(word(number))

    def call(self, number: int, head: str, operands: Sequence[int]) -> None:
        """Adds the term `number`: a call of the declared op `head` on the terms `operands`."""
        self._pending.append(f"(union {word(number)} ({' '.join([head, *map(word, operands)])}))")

    def equate(self, one: int, other: int) -> None:
        """Records that the terms with these two numbers are equal."""
        self._pending.append(f"(union {word(one)} {word(other)})")

    def pattern(self, name: str, facts: Sequence[str], variables: Sequence[str]) -> None:
        """Adds a pattern for `run` to match.

        Args:
            name: the name under which `run` reports the matches.
            facts: the conditions of a match, in egglog's language.
            variables: the variables whose terms each match reports.
        """
        self._pending.append(f"(relation {name} ({' T' * len(variables)}))")
        self._pending.append(f"(rule ({' '.join(facts)}) (({name} {' '.join(variables)})) :ruleset match)")

    def run(self, names: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, ...]]]]:
        """Executes the pending commands and matches all patterns once.

        Returns:
            Two values. A list that gives, for each term, the lowest number of the terms equal to it. And a mapping from
            each pattern in `names` to its matches. A match is a tuple with the lowest equal term for each variable.
        """
        self._pending.append("(run order 1) (run match 1)")
        text, self._pending = "\n".join(self._pending), []
        self._native.run_program(*self._native.parse_program(text))
        functions = self._native.freeze().functions
        rows = functions["term"].rows
        members = sorted((self._native.value_to_i64(row.inputs[0]), row.output) for row in rows)
        least: dict[Any, int] = {}
        classes = [least.setdefault(value, number) for number, value in members]
        found = {name: [tuple(least[one] for one in row.inputs) for row in functions[name].rows] for name in names}
        return classes, found


def word(number: int) -> str:
    """Returns the name by which egglog's language refers to the term with this number."""
    return f"(term {number})"
