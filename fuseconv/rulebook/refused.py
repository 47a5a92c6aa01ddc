"""The reason why a rule does not match: what the rule expects, and what the graph contains instead."""

from __future__ import annotations

from functools import cache
from typing import Any

from fuseconv.contract.dtypes import SHORT_DTYPES


class Refused(Exception):  # noqa: N818  # a result with a reason, not a fault
    """A predicate does not hold, or a value cannot be determined, so that the rule does not apply.

    The miss reports `expected` and `found`. `at` is the node that differs, or None for the last node of the match.
    """

    def __init__(self, expected: str, found: str, *, at: Any = None) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected = expected
        self.found = found
        self.at = at

    def words(self) -> tuple[str, str]:
        """Returns the texts `expected` and `found` as a pair."""
        return self.expected, self.found


def text_of(operand: Any) -> str:
    """Describes a node (such as `name: f32[2, 8]`) or a literal for a message."""
    name = getattr(operand, "name", None)
    if name is None:
        return repr(operand)
    fake = operand.meta.get("val")
    if getattr(fake, "dtype", None) is None:
        return f"{name}"
    sizes = ", ".join(_size_text(getattr(length, "node", length)) for length in fake.shape)
    return f"{name}: {SHORT_DTYPES.get(str(fake.dtype), str(fake.dtype))}[{sizes}]"


def _size_text(length: Any) -> str:
    return _expression_text(length.expr) if hasattr(length, "expr") else str(length)


@cache
def _expression_text(expression: Any) -> str:
    """Returns a symbolic size as text. The text is cached, because printing a symbolic size is slow."""
    return str(expression)
