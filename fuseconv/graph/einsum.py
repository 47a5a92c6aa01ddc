"""Einsum equations: their letters, and whether an equation of two operands is a single matrix product."""

from __future__ import annotations

import re
from typing import NamedTuple


class Product(NamedTuple):
    """An einsum as a matrix product: the permutations of its operands and of its result."""

    left: list[int]
    right: list[int]
    result: list[int]


def product_of_matrices(equation: str, ranks: tuple[int, int]) -> Product | None:
    """Returns the permutations that turn an einsum of two operands into one matrix product, or None if there are none.

    Each operand must have exactly one axis that the other operand lacks: the rows and the columns. One of the common
    axes is summed over; the other common axes are batch axes. `...` stands for as many axes as the ranks of the
    operands require.
    """
    operands, arrow, result = equation.replace(" ", "").partition("->")
    terms = operands.split(",")
    if not arrow or len(terms) != 2:
        return None
    spans = [rank - len(term.replace("...", "")) for rank, term in zip(ranks, terms, strict=True) if "..." in term]
    if len(spans) == 1 or len(set(spans)) > 1 or any(span < 0 for span in spans):
        return None
    dots = [f".{at}" for at in range(spans[0])] if spans else []
    one, other, out = (_axes(term, dots) for term in (*terms, result))
    if any(len(set(axes)) != len(axes) for axes in (one, other, out)) or set(out) - set(one) - set(other):
        return None
    batch = [axis for axis in out if axis in one and axis in other]
    rows = [axis for axis in one if axis not in other]
    columns = [axis for axis in other if axis not in one]
    summed = [axis for axis in one if axis in other and axis not in out]
    if not len(rows) == len(columns) == len(summed) == 1 or not {*rows, *columns} <= set(out):
        return None
    made = [*batch, *rows, *columns]
    return Product(
        [one.index(axis) for axis in (*batch, *rows, *summed)],
        [other.index(axis) for axis in (*batch, *summed, *columns)],
        [made.index(axis) for axis in out],
    )


def collapsed(equation: str) -> str | None:
    """Replaces the leading axes that the first operand and the result share with `...`.

    The other letters are renamed in order of appearance: `bnd,ed->bne` becomes `...a,ba->...b`.

    Returns:
        The new equation. None if the equation has not two operands or if only one of the two already begins with `...`.
    """
    found = re.fullmatch(r"(\.\.\.)?(\w+),(\w+)->(\.\.\.)?(\w*)", equation)
    if found is None or found[1] != found[4]:
        return None
    first, second, result = found[2], found[3], found[5]
    lead = 0
    while first[lead : lead + 1] == result[lead : lead + 1] != "" and first[lead] not in second:
        lead += 1
    terms = (first[lead:], second, result[lead:])
    letters = dict.fromkeys("".join(terms))
    names = {letter: chr(ord("a") + at) for at, letter in enumerate(letters)}
    return "...{},{}->...{}".format(*("".join(names[one] for one in term) for term in terms))


def _axes(term: str, dots: list[str]) -> list[str]:
    before, found, after = term.partition("...")
    return [*before, *(dots if found else []), *after]
