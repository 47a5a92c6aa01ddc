"""Random models: their parts, and how each is tested."""

from __future__ import annotations

import random
from collections.abc import Sequence

from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import TensorSpec
from fuseconv.rulebook.rule import Rule

from .grow import Grower, filled
from .program import Model
from .splice import spelled, splice
from .templates import EXACT, EXPRESSIONS, IN_PLACE, WEIGHTS


def random_model(seed: str, rules: Sequence[Rule], first: int, targets: Sequence[str]) -> Model:
    """Returns a random model.

    Args:
        seed: everything follows from it and `first`.
        rules: their examples are spliced in.
        first: the number of the rule that is among them for certain.
        targets: what it is to be converted to.
    """
    draw = random.Random(seed)
    grower = Grower(draw)
    known = [rule for rule in rules if rule.examples.hit]
    _inputs(grower)
    _grow(grower, draw.randrange(5))
    for at in range(draw.choice((1, 1, 1, 2, 3))):
        rule = known[first % len(known)] if at == 0 else draw.choice(known)
        splice(grower, spelled(rule, draw))
        _grow(grower, draw.randrange(4))
    return grower.finish(targets)


def _inputs(grower: Grower) -> None:
    draw = grower.draw
    shapes: list[tuple[int | Dim, ...]] = [
        (grower.dim(0), 8),
        (grower.dim(0), 4, 8),
        (grower.dim(0), grower.dim(1), 8),
        (2, grower.dim(0), 6),
        (4, 8),
        (grower.dim(0),),
        (grower.dim(0), 3, 4, 4),
    ]
    for _ in range(draw.choice((1, 1, 2))):
        grower.add_input(TensorSpec("x", grower.dtype, draw.choice(shapes)))
    if draw.random() < 0.3:
        grower.add_input(TensorSpec("x", draw.choice(("i64", "i64", "i32")), draw.choice(shapes[:3])))
    if draw.random() < 0.2:
        grower.add_input(TensorSpec("x", "bool", draw.choice(shapes[:3])))
    used = {dim.name for spec in grower.inputs.values() for dim in spec.dims()}
    for name in list(grower.dims):
        if name not in used:
            del grower.dims[name]
            for sizes in grower.sizes:
                del sizes[name]


def _grow(grower: Grower, count: int) -> None:
    """Adds some lines."""
    draw = grower.draw
    for _ in range(count):
        if draw.random() < 0.08:
            _write(grower)
            continue
        (kind,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
        for _ in range(6):
            template = draw.choice(EXPRESSIONS[kind])
            if (found := filled(grower, template)) is not None:
                expression, taken = found
                exact = kind in EXACT and "." not in template.replace("{", "").partition("0.1")[1]
                exact = exact and "embedding" not in template and all(value.exact for value in taken.values())
                if grower.add(expression, exact=exact) is not None:
                    break


def _write(grower: Grower) -> None:
    """A clone, now and then a view of it, written in place."""
    draw = grower.draw
    floating = grower.choose(lambda value: value.one.dtype.is_floating_point and value.one.dim() > 0)
    if floating is None or (clone := grower.add(f"{floating.name}.clone()")) is None:
        return
    if draw.random() < 0.4:
        grower.add(draw.choice((f"{clone.name}[..., :1]", f"{clone.name}.transpose(0, -1)", f"{clone.name}.view(-1)")))
    template = draw.choice(IN_PLACE).replace("{v}", clone.name).replace("{r}", "0.5")
    other = floating.name if draw.random() < 0.5 else clone.name
    grower.run(template.replace("{g}", other))
