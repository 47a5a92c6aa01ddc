"""Generates the calls used for verification, which cover different sizes of the dims and different kinds of values."""

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
from fuseconv.sizes.failing_sizes import sizes_text

MAX_INPUT_ELEMENTS = 2**19
"""The maximum number of input elements of a generated case. Three RGB images of 224 x 224 pixels fit."""


MAX_OUTPUT_ELEMENTS = 2**20
"""The maximum number of output elements of a generated case. At this limit, the reference outputs in the bundle take
12 MB in f32 and f64. A base-size encoder reaches the limit with 1365 tokens, which take 10 s in f64 on two cores."""


Kind = Literal["ordinary", "special"]
"""The kind of a case's input values. `special` values are NaN, infinities and the limits of a dtype. Runtimes other
than PyTorch may treat special values differently. All other values are `ordinary`."""


@dataclass(frozen=True)
class Case:
    """One call used for verification.

    Attributes:
        name: the name of the case, for example `given`, `smallest` or `largest seq`.
        inputs: one tensor per contract input. Empty if the case is not run.
        kind: `special` if the inputs contain NaN, infinities or the limits of a dtype, else `ordinary`.
        untried: why the case is not run, for example because the original rejects its inputs. Empty if it is run.
    """

    name: str
    inputs: tuple[torch.Tensor, ...]
    kind: Kind = "ordinary"
    untried: str = ""


def cases(program: Program, *, seed: int = 0) -> list[Case]:
    """Generates the cases of a program: the given call, one call per choice of sizes, and one call per kind of values.

    The choices of sizes include those at which an assumption of torch.export does not hold.

    Dims are halved, down to their minimums, until the inputs have at most `MAX_INPUT_ELEMENTS` elements and the outputs
    at most `MAX_OUTPUT_ELEMENTS`.
    """
    contract = program.contract
    chosen = [Case("given", program.examples)]
    # Each case has its own seed, so that two cases of the same size still differ.
    tried = sizes_to_try(contract, seed=seed)
    tried |= {sizes_text(sizes): dict(sizes) for sizes in program.unusual if sizes not in tried.values()}
    for own_seed, (name, sizes) in enumerate(tried.items(), seed):
        chosen.append(Case(name, _drawn(program, _affordable(program, sizes), own_seed)))
    sizes = _affordable(program, example_sizes(contract))
    chosen.append(Case("zeros and large", _drawn(program, sizes, seed, "zeros and large")))
    return chosen + [_with_values(program, sizes, seed, kind) for kind in kinds_for(contract.inputs)]


def _drawn(program: Program, sizes: Mapping[str, int], seed: int, kind: Values = "random") -> tuple[torch.Tensor, ...]:
    """Generates random inputs. Integer inputs without a declared range get values that the original model accepts."""
    contract = program.contract
    if program.original is None or contract.device != "cpu" or not open_integers(contract):
        return draw(contract, sizes, seed=seed, kind=kind)
    return draw_taken(program.original, contract, sizes, seed=seed, kind=kind)[0]


def _with_values(program: Program, sizes: Mapping[str, int], seed: int, kind: Values) -> Case:
    """Generates a case whose inputs are of one kind of values, or an empty case with the reason in `untried`."""
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
    """Returns the first node that converts floats to integers, or None if no node does."""
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
    """Reduces sizes to the element limits: repeatedly halves the dim with the largest ratio to its minimum."""
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
    """Returns the number of elements of a shape. A data-dependent size counts as 1."""
    expressions = [size.node.expr.subs(values) for size in shape if isinstance(size, torch.SymInt)]
    sizes = [int(size) for size in expressions if size.is_number]
    return math.prod(sizes) * math.prod(size for size in shape if isinstance(size, int))
