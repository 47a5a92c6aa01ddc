"""The functions of the rule language, and the decorator that adds one: a Python function with a one-line docstring.

The number of operands comes from the signature, the kind from the return type, and the description from the docstring.
The table in docs/writing-rules.md, the errors of rule files and the matcher read what is registered here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Constants(Protocol):
    """The queries that a predicate may make about the program."""

    def is_state(self, node: Any) -> bool:
        """Returns whether a node is a parameter, buffer or constant. Its values may change in training."""

    def is_constant(self, node: Any) -> bool:
        """Returns whether the values of a node never change, so that they can be used at conversion."""

    def constant(self, node: Any) -> Any:
        """Returns the tensor of a constant node, None for any other node."""

    def formula(self, node: Any) -> Any:
        """Returns the formula of the elements of a tensor; see elements.py."""

    def leaves_some(self, node: Any) -> bool:
        """Returns whether each row of a bool tensor provably has a False element; see elements.py."""


@dataclass(frozen=True)
class Function:
    """A function: `test` raises `Refused` or returns nothing; `value` returns a value to compare or to pass on.

    Attributes:
        usage: an example of a call, such as `dtype(x)`.
        kind: `test` or `value`.
        least: the minimum number of operands.
        most: the maximum number of operands. None if it is unlimited.
        doc: the one-line description.
        tensors: whether every operand must be a tensor. Such a function never holds for a literal.
        follows: whether it examines everything that its operand is computed from, not only the operand.
        shapes: whether it compares whole shapes. A squeeze may remove other axes where a size is 1, so such a function
            holds only if the same squeeze, or none, decides the rank of all its operands.
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
    """Returns a decorator that adds a function to `FUNCTIONS`.

    The function takes the program as `Constants` and then its operands; `*operands` stands for one or more. A predicate
    returns None and raises `Refused`; a function with another return type gives a value.

    Args:
        tensors: see `Function`; so are the next two.
        follows: see `Function`.
        shapes: see `Function`.
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
