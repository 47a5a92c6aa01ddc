"""The registry of the rule language's functions, and the decorator that registers a Python function.

The signature of the Python function gives the number of operands, its return type gives the kind, and its one-line
docstring gives the description. The table in docs/rule-functions.md, the errors of rule files and the matcher use this
registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Constants(Protocol):
    """The interface through which a predicate queries the constants and formulas of a program's nodes."""

    def is_state(self, node: Any) -> bool:
        """Returns whether a node is a parameter, buffer or constant. Training may change the values of such a node."""

    def is_constant(self, node: Any) -> bool:
        """Returns whether the values of a node never change, so that they can be used at conversion."""

    def constant(self, node: Any) -> Any:
        """Returns the tensor of a constant node, or None for any other node."""

    def formula(self, node: Any) -> Any:
        """Returns a formula for the elements of a tensor in terms of their indices; see elements.py."""

    def leaves_some(self, node: Any) -> bool:
        """Returns whether each row of a bool tensor provably has a False element; see elements.py."""


@dataclass(frozen=True)
class Function:
    """A function of the rule language.

    A function of the kind `test` returns None if it holds, and raises `Refused` otherwise. A function of the kind
    `value` returns a value, which a condition compares or which becomes an argument of an op.

    Attributes:
        usage: an example of a call, such as `dtype(x)`.
        kind: `test` or `value`.
        least: the minimum number of operands.
        most: the maximum number of operands. None if the number is unlimited.
        doc: the one-line description.
        tensors: whether every operand must be a tensor. If so, the function never holds for a literal.
        follows: whether the function examines all nodes from which its operand is computed, not only the operand.
        shapes: whether the function depends on whole shapes. A squeeze removes any axis whose size happens to be 1, so
            the rank of its result may vary. If `shapes` is true, the function holds only if the ranks of all operands
            depend on the same squeeze, or on none.
        ends: whether the function holds for no op that a rule with this condition inserts, so that the rule does not
            lead to itself or to another rule.
        settings: whether the value depends on settings of the process. A step of a plan contains the value in place of
            the call, so that the plan means the same in every process.
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
    ends: bool
    settings: bool
    run: Callable[..., Any]


FUNCTIONS: dict[str, Function] = {}
"""Every function that a rule may call, by name."""


def rule_function(
    *, tensors: bool = True, follows: bool = False, shapes: bool = False, ends: bool = False, settings: bool = False
) -> Callable[[F], F]:
    """Returns a decorator that registers a function in `FUNCTIONS`.

    The first parameter of the function is the program, as `Constants`. The operands follow. A parameter `*operands`
    stands for one or more operands. A predicate returns None, or raises `Refused` if it does not hold; a function with
    another return type returns a value.

    Args:
        tensors: the attribute `tensors` of the registered `Function`.
        follows: the attribute `follows` of the registered `Function`.
        shapes: the attribute `shapes` of the registered `Function`.
        ends: the attribute `ends` of the registered `Function`.
        settings: the attribute `settings` of the registered `Function`.
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
            ends=ends,
            settings=settings,
            run=function,
        )
        return function

    return register
