"""Expands the `replace` lines of a rule that merges several matches.

A variable in the rule's `merge` field has the same value in all matches. Any other name has one value per match. `[*w]`
is the list of the values of `w` from all matches, and `*y, =` binds one result per match. A line that uses such a name
without a star is repeated for each match.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fuseconv.rulebook.rule_text import Apply, Call, Each, Items, Line, Name, Term


def spread(lines: Sequence[Line], shared: Collection[str], count: int) -> tuple[Line, ...]:
    """Returns the `replace` lines expanded for `count` matches.

    A name that has one value per match gets the suffix `_N` for match N, counted from 0.

    Args:
        lines: the parsed lines.
        shared: the pattern variables that have the same value in all matches.
        count: the number of matches.
    """
    common = set(shared)
    written: list[Line] = []
    for line in lines:
        if line.each:
            names = tuple(f"{line.targets[0]}_{at}" for at in range(count))
            written.append(replace(line, targets=names, value=_value(line.value, common, count, None), each=False))
        elif _is_common(line.value, common):
            common |= set(line.targets)
            written.append(replace(line, value=_value(line.value, common, count, None)))
        else:
            for at in range(count):
                targets = tuple(name if name == "_" else f"{name}_{at}" for name in line.targets)
                written.append(replace(line, targets=targets, value=_value(line.value, common, count, at)))
    return tuple(written)


def _is_common(value: Call | Term, common: Collection[str]) -> bool:
    """Returns whether all merged matches share a value: every name in the value without a star is in `common`."""
    match value:
        case Name(id=name):
            return name in common or name == "_"
        case Call(args=args, kwargs=kwargs):
            return all(_is_common(term, common) for term in (*args, *(term for _, term in kwargs)))
        case Items(items=terms) | Apply(args=terms):
            return all(_is_common(term, common) for term in terms)
        case _:
            return True


def _value(value: Call | Term, common: Collection[str], count: int, number: int | None) -> Call | Term:
    if isinstance(value, Call):
        args = tuple(_term(term, common, count, number) for term in value.args)
        return replace(
            value, args=args, kwargs=tuple((name, _term(term, common, count, number)) for name, term in value.kwargs)
        )
    return _term(value, common, count, number)


def _term(term: Term, common: Collection[str], count: int, number: int | None) -> Term:
    match term:
        case Name(id=name):
            return term if name in common or name == "_" else Name(f"{name}_{number}")
        case Items(items=items):
            spread_items: list[Term] = []
            for item in items:
                if isinstance(item, Each):
                    spread_items.extend(_term(item.term, common, count, at) for at in range(count))
                else:
                    spread_items.append(_term(item, common, count, number))
            return Items(tuple(spread_items))
        case Apply(args=args):
            return replace(term, args=tuple(_term(inner, common, count, number) for inner in args))
        case _:
            return term
