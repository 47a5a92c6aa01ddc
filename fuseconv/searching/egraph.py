"""An e-graph of egglog: it stores terms and which terms are equal, and finds the matches of patterns among them.

The caller numbers the terms. Commands are collected as text in egglog's language, so that a batch of commands needs
only one call of egglog.
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
    """An e-graph. Each term is a leaf or a call on other terms."""

    def __init__(self) -> None:
        self._native = load_egglog()()
        self._declared: set[str] = set()
        self._pending: list[str] = [_START]

    def declare(self, name: str, arity: int, swapped: Sequence[str] | None = None) -> str:
        """Declares the calls of an op with this number of operands, and returns their name in egglog's language.

        Args:
            name: the name of the op.
            arity: the number of operands.
            swapped: for a commutative op, the operands after the first two, in egglog's language. Calls with these
                operands are equal if their first two operands are swapped. None for other ops.
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
        """Adds a term that is a leaf."""
        self._pending.append(word(number))

    def call(self, number: int, head: str, operands: Sequence[int]) -> None:
        """Adds a term that is a call on other terms."""
        self._pending.append(f"(union {word(number)} ({' '.join([head, *map(word, operands)])}))")

    def equate(self, one: int, other: int) -> None:
        """Records that two terms are equal."""
        self._pending.append(f"(union {word(one)} {word(other)})")

    def pattern(self, name: str, facts: Sequence[str], variables: Sequence[str]) -> None:
        """Adds a pattern.

        Args:
            name: the name of the pattern.
            facts: the conditions of a match, in egglog's language.
            variables: the variables whose terms each match reports.
        """
        self._pending.append(f"(relation {name} ({' T' * len(variables)}))")
        self._pending.append(f"(rule ({' '.join(facts)}) (({name} {' '.join(variables)})) :ruleset match)")

    def run(self, names: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, ...]]]]:
        """Executes the pending commands and matches the patterns once.

        Returns:
            For each term, the lowest term that is equal to it. And for each pattern in `names`, its matches: each match
            gives, for each variable, the lowest equal term.
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
    """Returns the text of a numbered term in egglog's language."""
    return f"(term {number})"
