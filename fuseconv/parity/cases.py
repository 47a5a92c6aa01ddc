"""The calls that are tried: at every kind of size, and with every kind of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuseconv.capture.drawn import draw_special, draw_taken, open_integers
from fuseconv.contract.inputs import draw, example_sizes, sizes_to_try
from fuseconv.contract.values import SPECIAL, kinds_for
from fuseconv.contract.values import Kind as Values
from fuseconv.graph.nodes import facts_of, is_call
from fuseconv.program.captured import Program, dim_symbols

MAX_INPUT_ELEMENTS = 2**19
"""Of one case that is drawn: three images of 224 x 224. Time grows with it."""


MAX_OUTPUT_ELEMENTS = 2**20
"""Of one case that is drawn: 12 MB of reference in f32 and f64, which the bundle carries. A base-size encoder
gives that for 1365 tokens, and takes 10 s for them in f64 on two cores."""


Kind = Literal["ordinary", "special"]
"""Whether a case has values that every runtime treats alike, or NaN, infinities and the ends of a dtype's range, for
which runtimes other than PyTorch have rules of their own."""


@dataclass(frozen=True)
class Case:
    """One call to try.

    Attributes:
        name: `given`, `smallest`, `largest seq`, ...
        inputs: one tensor per contract input.
        kind: `special` for NaN, infinities and the ends of a dtype's range.
        untried: why the call is not made: the original does not take what the case is about. Empty if it is made.
    """

    name: str
    inputs: tuple[torch.Tensor, ...]
    kind: Kind = "ordinary"
    untried: str = ""


def cases(program: Program, *, seed: int = 0) -> list[Case]:
    """Chooses the calls to try: the given one, others at every kind of size, and others with every kind of values.

    Sizes are halved until what is drawn has at most `MAX_INPUT_ELEMENTS` and gives at most `MAX_OUTPUT_ELEMENTS`.
    """
    contract = program.contract
    chosen = [Case("given", program.examples)]
    # Each with a seed of its own: two that come out at one size are still two.
    for own_seed, (name, sizes) in enumerate(sizes_to_try(contract, seed=seed).items(), seed):
        chosen.append(Case(name, _drawn(program, _affordable(program, sizes), own_seed)))
    sizes = _affordable(program, example_sizes(contract))
    chosen.append(Case("zeros and large", _drawn(program, sizes, seed, "zeros and large")))
    return chosen + [_with_values(program, sizes, seed, kind) for kind in kinds_for(contract.inputs)]


def _drawn(program: Program, sizes: Mapping[str, int], seed: int, kind: Values = "random") -> tuple[torch.Tensor, ...]:
    """Draws a call; where nothing is known of its whole numbers, one that the original takes."""
    contract = program.contract
    if program.original is None or contract.device != "cpu" or not open_integers(contract):
        return draw(contract, sizes, seed=seed, kind=kind)
    return draw_taken(program.original, contract, sizes, seed=seed, kind=kind)[0]


def _with_values(program: Program, sizes: Mapping[str, int], seed: int, kind: Values) -> Case:
    """Draws a case of a kind of values, or says why the original has none."""
    special = kind in SPECIAL
    how: Kind = "special" if special else "ordinary"
    if kind == "integers" and program.contract.device != "cpu":
        return Case(kind, (), how, "an out-of-range index would crash the process on a GPU")
    if special and (node := _to_integer(program)) is not None:
        return Case(
            kind, (), how, f"{node.name} converts floats to integers, which is undefined for out-of-range values"
        )
    original = program.original or program.exported.module(check_guards=False)
    inputs, why = draw_special(original, program.contract, sizes, seed=seed, kind=kind)
    return Case(kind, inputs, how, why)


def _to_integer(program: Program) -> torch.fx.Node | None:
    """Returns the first node that converts floats to integers."""
    nodes: list[torch.fx.Node] = list(program.exported.graph.nodes)
    for node in nodes:
        made = node.meta.get("val")
        converts = is_call(node) and facts_of(node).converts
        if converts and isinstance(made, torch.Tensor) and not made.is_floating_point() and made.dtype != torch.bool:
            read = [operand.meta.get("val") for operand in node.all_input_nodes]
            if any(isinstance(value, torch.Tensor) and value.is_floating_point() for value in read):
                return node
    return None


def _affordable(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Halves the dim that is farthest above its minimum until the case is small enough or every dim is at its own."""
    dims, affordable = program.contract.dims(), dict(sizes)
    while _is_large(program, affordable):
        name = max(affordable, key=lambda name: affordable[name] / max(dims[name].min, 1), default=None)
        if name is None or affordable[name] <= dims[name].min:
            break
        affordable[name] = dims[name].allowed(affordable[name] // 2)
    return affordable


def _is_large(program: Program, sizes: Mapping[str, int]) -> bool:
    inputs = sum(math.prod(spec.sizes(sizes)) for spec in program.contract.inputs)
    steps = {name: dim.step for name, dim in program.contract.dims().items()}
    values = {symbol: sizes[name] // steps[name] for name, symbol in dim_symbols(program).items()}
    (results,) = program.exported.graph.output_node().args
    outputs = sum(_elements(result.meta["val"].shape, values) for result in results)
    return inputs > MAX_INPUT_ELEMENTS or outputs > MAX_OUTPUT_ELEMENTS


def _elements(shape: Sequence[int | torch.SymInt], values: Mapping[Any, int]) -> int:
    """Counts the elements of a shape; a size that only the data can tell counts as one."""
    expressions = [size.node.expr.subs(values) for size in shape if isinstance(size, torch.SymInt)]
    sizes = [int(size) for size in expressions if size.is_number]
    return math.prod(sizes) * math.prod(size for size in shape if isinstance(size, int))
