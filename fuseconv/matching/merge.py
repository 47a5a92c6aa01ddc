"""The `replace` of a rule that merges sites, written out for a number of them.

What the sites share is read under its own name. Any other name is one site's own: `[*w]` is the list of theirs, `*y, =`
binds one result for each, and a line that reads such a name without a star is a line for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from fuseconv.rulebook.rule_text import Apply, Call, Each, Items, Line, Name, Term


def spread(lines: Sequence[Line], shared: Collection[str], count: int) -> tuple[Line, ...]:
    """Writes `replace` out for `count` sites: the names of site N end in `_N`.

    Args:
        lines: the parsed lines.
        shared: the captures that the sites have in common.
        count: how many sites there are.
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
    """Whether a value reads a site's own names under a star only."""
    match value:
        case Name(id=name):
            return name in common or name == "_"
        case Call(args=args, kwargs=kwargs):
            return all(_is_common(term, common) for term in (*args, *(term for _, term in kwargs)))
        case Items(items=terms) | Apply(args=terms):
            return all(_is_common(term, common) for term in terms)
        case _:
            return True


def _value(value: Call | Term, common: Collection[str], count: int, site: int | None) -> Call | Term:
    if isinstance(value, Call):
        args = tuple(_term(term, common, count, site) for term in value.args)
        return replace(
            value, args=args, kwargs=tuple((name, _term(term, common, count, site)) for name, term in value.kwargs)
        )
    return _term(value, common, count, site)


def _term(term: Term, common: Collection[str], count: int, site: int | None) -> Term:
    match term:
        case Name(id=name):
            return term if name in common or name == "_" else Name(f"{name}_{site}")
        case Items(items=items):
            spread_items: list[Term] = []
            for item in items:
                if isinstance(item, Each):
                    spread_items.extend(_term(item.term, common, count, at) for at in range(count))
                else:
                    spread_items.append(_term(item, common, count, site))
            return Items(tuple(spread_items))
        case Apply(args=args):
            return replace(term, args=tuple(_term(inner, common, count, site) for inner in args))
        case _:
            return term
