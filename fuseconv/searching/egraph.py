"""An e-graph of egglog: terms, which of them are equal, and the places where patterns match modulo these equalities.

Terms are numbered by the caller. Everything is written in egglog's language, which needs one Python call per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuseconv.errors import UnsupportedError

_START = "(sort T) (constructor term (i64) T) (ruleset match) (ruleset order)"


def load_egglog() -> Any:
    """Returns the class of e-graphs.

    Raises:
        UnsupportedError: egglog is not installed.
    """
    try:
        from egglog.bindings import EGraph as Native
    except ImportError as error:
        fix = "install it with `pip install 'fuseconv[search]'`, or convert with --no-search"
        raise UnsupportedError(f"--search needs egglog: {error}", where="--search", fix=fix) from None
    return Native


class EGraph:
    """An e-graph whose terms are calls on other terms, or leaves."""

    def __init__(self) -> None:
        self._native = load_egglog()()
        self._declared: set[str] = set()
        self._pending: list[str] = [_START]

    def declare(self, name: str, arity: int, swapped: Sequence[str] | None = None) -> str:
        """Returns the head of calls with this number of operands.

        Args:
            name: the name of the op.
            arity: the number of operands.
            swapped: the operands after the first two, in egglog's language, with which these two may be swapped.
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
        """Adds a leaf."""
        self._pending.append(word(number))

    def call(self, number: int, head: str, operands: Sequence[int]) -> None:
        """Adds a call on terms."""
        self._pending.append(f"(union {word(number)} ({' '.join([head, *map(word, operands)])}))")

    def equate(self, one: int, other: int) -> None:
        """Makes two terms equal."""
        self._pending.append(f"(union {word(one)} {word(other)})")

    def pattern(self, name: str, facts: Sequence[str], variables: Sequence[str]) -> None:
        """Adds a pattern: facts in egglog's language, and the variables whose values a match has."""
        self._pending.append(f"(relation {name} ({' T' * len(variables)}))")
        self._pending.append(f"(rule ({' '.join(facts)}) (({name} {' '.join(variables)})) :ruleset match)")

    def run(self, names: Sequence[str]) -> tuple[list[int], dict[str, list[tuple[int, ...]]]]:
        """Matches the patterns once.

        Returns:
            For each term the least equal one; and the matches of each pattern, with the least equal term for each
            variable.
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
    """Returns a term in egglog's language."""
    return f"(term {number})"
