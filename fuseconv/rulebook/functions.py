"""The registry of the rule language's functions, and the decorator that registers a Python function.

The signature of the Python function gives the number of operands, its return type gives the kind, and its one-line
docstring gives the description. The table in docs/writing-rules.md, the errors of rule files and the matcher use this
registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Constants(Protocol):
    """The questions that a predicate may ask about the program."""

    def is_state(self, node: Any) -> bool:
        """Returns whether a node is a parameter, buffer or constant. Training may change the values of such a node."""

    def is_constant(self, node: Any) -> bool:
        """Returns whether the values of a node never change, so that they can be used at conversion."""

    def constant(self, node: Any) -> Any:
        """Returns the tensor of a constant node. Returns None for any other node."""

    def formula(self, node: Any) -> Any:
        """Returns the formula that gives each element of a tensor; see elements.py."""

    def leaves_some(self, node: Any) -> bool:
        """Returns whether each row of a bool tensor provably has a False element; see elements.py."""


@dataclass(frozen=True)
class Function:
    """A function of the rule language.

    A function of the kind `test` raises `Refused` or returns nothing. A function of the kind `value` returns a value
    that a condition compares or that becomes an argument.

    Attributes:
        usage: an example of a call, such as `dtype(x)`.
        kind: `test` or `value`.
        least: the minimum number of operands.
        most: the maximum number of operands. None if the number is unlimited.
        doc: the one-line description.
        tensors: whether every operand must be a tensor. Such a function never holds for a literal.
        follows: whether the function examines everything that its operand is computed from, not only the operand.
        shapes: whether the function depends on whole shapes. A squeeze may remove another axis whose size happens to
            be 1. So such a function holds only if the same squeeze, or none, determines the rank of all its operands.
        run: the Python function.
    """

    usage: str
    kind: Literal["test", "value"]
    least: int
    most: int | None
    doc: str
    tensors: bool
    follows: bool
    shapes: bool
    run: Callable[..., Any]


FUNCTIONS: dict[str, Function] = {}
"""Every function that a rule may call, by name."""


def rule_function(*, tensors: bool = True, follows: bool = False, shapes: bool = False) -> Callable[[F], F]:
    """Returns a decorator that registers a function in `FUNCTIONS`.

    The function takes the program as `Constants`, then its operands. A parameter `*operands` stands for one or more
    operands. A predicate returns None, or raises `Refused` if it does not hold; a function with another return type
    returns a value.

    Args:
        tensors: as in `Function`.
        follows: as in `Function`.
        shapes: as in `Function`.
    """

    def register(function: F) -> F:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1:]
        variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
        least = 1 if variadic else len(parameters)
        operands = ", ".join([parameter.name for parameter in parameters if parameter.name != "operands"])
        FUNCTIONS[function.__name__] = Function(
            usage=f"{function.__name__}({(operands or 'x') + ', ...' if variadic else operands})",
            kind="test" if signature.return_annotation in (None, "None") else "value",
            least=least,
            most=None if variadic else least,
            doc=inspect.getdoc(function) or "",
            tensors=tensors,
            follows=follows,
            shapes=shapes,
            run=function,
        )
        return function

    return register
