"""Defines formulas, which express the elements of a tensor in terms of their indices and of symbolic sizes.

A formula is a number (a sympy expression), a condition (`Truth`), or a selection between two numbers (`Choice`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch


class UnknownError(Exception):
    """A tensor has no formula, for example because it depends on an input or on an op without a rule.

    The message is a noun phrase that names the obstacle, to complete a message such as `found ...`.
    """


@dataclass(frozen=True)
class AtLeastZero:
    """The condition that an integer formula is at least 0."""

    value: sympy.Expr


@dataclass(frozen=True)
class Both:
    """The conjunction of two conditions."""

    left: Truth
    right: Truth


@dataclass(frozen=True)
class Either:
    """The disjunction of two conditions."""

    left: Truth
    right: Truth


@dataclass(frozen=True)
class Choice:
    """A selection between two numbers: the value is `yes` if the condition holds, else `no`."""

    condition: Truth
    yes: sympy.Expr
    no: sympy.Expr


Truth: TypeAlias = bool | AtLeastZero | Both | Either
Formula: TypeAlias = sympy.Expr | Choice | Truth


def axis(at: int) -> sympy.Symbol:
    """Returns the symbol of the index along an axis. Axes are counted from the end: the last axis is axis 1."""
    return sympy.Symbol(f"d{at}", integer=True, nonnegative=True)


def negated(truth: Truth) -> Truth:
    """Returns the negation of a condition."""
    match truth:
        case bool():
            return not truth
        case AtLeastZero(value=value):
            return AtLeastZero(-value - 1)
        case Both(left=left, right=right):
            return Either(negated(left), negated(right))
        case Either(left=left, right=right):
            return Both(negated(left), negated(right))


def number(value: Any) -> sympy.Expr:
    """Returns a number or a symbolic size as a formula.

    Raises:
        UnknownError: the value is neither a number nor a symbolic size.
    """
    if isinstance(value, torch.SymInt):
        return value.node.expr
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnknownError(str(value))
    return sympy.sympify(int(value) if isinstance(value, float) and value.is_integer() else value)


def substituted(formula: Formula, change: Mapping[Any, Any]) -> Formula:
    """Returns a formula with symbols replaced by other formulas. All replacements are made simultaneously.

    Args:
        formula: the formula in which symbols are replaced.
        change: maps each symbol to its replacement.
    """
    match formula:
        case bool():
            return formula
        case AtLeastZero(value=value):
            return AtLeastZero(value.xreplace(change))
        case Both(left=left, right=right) | Either(left=left, right=right):
            return type(formula)(substituted(left, change), substituted(right, change))  # type: ignore[arg-type]
        case Choice(condition=condition, yes=yes, no=no):
            return Choice(substituted(condition, change), yes.xreplace(change), no.xreplace(change))  # type: ignore[arg-type]
        case _:
            return formula.xreplace(change)


def value_of(formula: Formula) -> sympy.Expr | Choice:
    """Converts a condition to a selection: 1 if it holds, else 0. Returns any other formula unchanged."""
    if isinstance(formula, bool | AtLeastZero | Both | Either):
        return Choice(formula, sympy.Integer(1), sympy.Integer(0))
    return formula


def truth_of(formula: Formula) -> Truth:
    """Converts a formula to a condition: a number becomes the condition that the number is not 0.

    Raises:
        UnknownError: the formula is a selection, but not between the number 0 and another constant number.
    """
    if isinstance(formula, Choice):
        yes, no = formula.yes, formula.no
        if yes.is_number and no.is_number and bool(yes != 0) != bool(no != 0):
            return formula.condition if yes != 0 else negated(formula.condition)
        raise UnknownError("a selection between numbers that is used as a condition")
    if isinstance(formula, sympy.Expr):
        return Either(AtLeastZero(formula - 1), AtLeastZero(-formula - 1))
    return formula


def lifted(left: Formula, right: Formula, op: Callable[[sympy.Expr, sympy.Expr], sympy.Expr]) -> sympy.Expr | Choice:
    """Returns the formula of an arithmetic op. If one operand is a selection, the result is a selection, too.

    Args:
        left: the formula of the first operand.
        right: the formula of the second operand.
        op: a function that computes the result from two numbers.

    Raises:
        UnknownError: both operands are selections.
    """
    one, other = value_of(left), value_of(right)
    if isinstance(one, Choice) and isinstance(other, Choice):
        raise UnknownError("arithmetic on two selections")
    if isinstance(one, Choice):
        return Choice(one.condition, op(one.yes, other), op(one.no, other))
    if isinstance(other, Choice):
        return Choice(other.condition, op(one, other.yes), op(one, other.no))
    return op(one, other)
