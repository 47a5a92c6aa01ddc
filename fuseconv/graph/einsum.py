"""Einsum equations: their letters, and whether an equation of two operands is a single matrix product."""

from __future__ import annotations

import re
from typing import NamedTuple


class Product(NamedTuple):
    """An einsum of two operands, expressed as one batched matrix product.

    Attributes:
        left: the permutation of the first operand's axes to [batch axes, rows, summed].
        right: the permutation of the second operand's axes to [batch axes, summed, columns].
        result: the permutation of the product's axes, [batch axes, rows, columns], to the result of the einsum.
        rows: the number of axes of rows. If there are two, the first is one of heads, which share the second operand.
    """

    left: list[int]
    right: list[int]
    result: list[int]
    rows: int


def product_of_matrices(equation: str, ranks: tuple[int, int]) -> Product | None:
    """Returns the permutations that express an einsum as one matrix product, or None if it is not one matrix product.

    Each operand must have exactly one axis that the other operand lacks: the row axis and the column axis. Exactly one
    of the common axes is summed over; the other common axes are batch axes. The first operand may have a second axis of
    rows, as queries and attention weights whose heads share keys and values, if the summed axis is its last one, and
    the result begins with the batch axes and ends with the columns. Where the batch axis is a position, as in
    `bhld,lrd->bhlr` of relative positions, the second operand would be repeated for each row axis.

    Args:
        equation: the equation, such as `bhqd,bhkd->bhqk`. `...` stands for as many axes as the ranks require.
        ranks: the number of dims of each operand.
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
    if not len(columns) == len(summed) == 1 or not {*rows, *columns} <= set(out):
        return None
    if len(rows) == 2 and batch == out[: len(batch)] != [] and one[-1:] == summed and out[-1:] == columns:
        # Heads come before positions in scores and in weights: queries times keys, and weights times values.
        rows = [axis for axis in (out if other[-1:] == summed else one) if axis in rows]
    elif len(rows) != 1:
        return None
    made = [*batch, *rows, *columns]
    return Product(
        [one.index(axis) for axis in (*batch, *rows, *summed)],
        [other.index(axis) for axis in (*batch, *summed, *columns)],
        [made.index(axis) for axis in out],
        len(rows),
    )


def collapsed(equation: str) -> str | None:
    """Returns the equation with `...` in place of the leading axes that the first operand and the result share.

    The other letters are renamed in order of appearance: `bnd,ed->bne` becomes `...a,ba->...b`.

    Returns:
        The new equation. None if the equation does not have two operands, or if `...` begins only the first operand or
        only the result.
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
    """Returns the axes of a term, one letter each, with `...` replaced by the names in `dots`."""
    before, found, after = term.partition("...")
    return [*before, *(dots if found else []), *after]
