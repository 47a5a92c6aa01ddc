"""Parity: every target of a bundle against the original model and against the float64 truth, on several inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from fuseconv import failing_sizes
from fuseconv.agreement import difference, not_the_original
from fuseconv.capture import Program
from fuseconv.contract import Contract
from fuseconv.drawn import draw_special, draw_taken, open_integers
from fuseconv.errors import FileError, ParityError, RefusedError
from fuseconv.inputs import draw, example_sizes, sizes_to_try
from fuseconv.targets.artifact import dim_symbols
from fuseconv.tolerance import Row
from fuseconv.truth import run_in_float64
from fuseconv.values import SPECIAL, kinds_for
from fuseconv.values import Kind as Values

REFERENCE = "reference.safetensors"

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


@dataclass(frozen=True)
class Reference:
    """What a case must give: the original model's outputs, and the same in float64; none for a case not tried."""

    case: Case
    original: tuple[torch.Tensor, ...]
    truth: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class OutputRow:
    """One output of one target in one case of a kind.

    Attributes:
        limit: whether the bundle's manifest says that the target's runtime computes this output its own way.
    """

    target: str
    case: str
    output: str
    row: Row
    kind: Kind = "ordinary"
    limit: bool = False

    @property
    def ok(self) -> bool:
        """Whether the output is right, or differs by a limit that the manifest names."""
        return self.row.ok or self.limit

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        named = {"target": self.target, "case": self.case, "kind": self.kind, "output": self.output}
        return {**named, **self.row.to_json(), **({"limit": True} if self.limit else {})}


@dataclass(frozen=True)
class Report:
    """All rows of a verification.

    Attributes:
        rows: one a target, case and output.
        untried: the cases that were not run, and why.
    """

    rows: tuple[OutputRow, ...]
    untried: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every row passes; of no rows nothing is proved."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    def error(self, where: str) -> ParityError | None:
        """Returns the error for the rows that fail: the first one, and how many there are."""
        if self.ok:
            return None
        failing = [row for row in self.rows if not row.ok]
        said = "nothing was run"
        if failing:
            first = failing[0]
            said = (
                f"{len(failing)} of {len(self.rows)} rows fail; first: target {first.target}, case {first.case}, "
                f"output {first.output}: {first.row.reason}"
            )
        return ParityError(said, where=where, fix="convert the model again on this machine, or leave the target out")

    def counts(self) -> dict[str, int]:
        """Returns how much was run: targets, cases, and outputs compared."""
        return {
            "targets": len({row.target for row in self.rows}),
            "cases": len({row.case for row in self.rows}),
            "rows": len(self.rows),
        }

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values: `ok`, what was run, the worst of each target, the rows, and the cases not run."""
        targets = dict.fromkeys(row.target for row in self.rows)
        return {
            "ok": self.ok,
            "run": self.counts(),
            "targets": {target: worst([row for row in self.rows if row.target == target]) for target in targets},
            "rows": [row.to_json() for row in self.rows],
            "untried": dict(self.untried),
        }


def worst(rows: Sequence[OutputRow]) -> dict[str, Any]:
    """Returns whether all rows pass, the largest of each figure, and the first reason, as plain JSON values."""
    figures = {name: max((getattr(row.row, name) for row in telling(rows)), key=_nan_is_largest) for name in _FIGURES}
    reason = next((row.row.reason for row in rows if not row.ok), "")
    return Row(ok=all(row.ok for row in rows), **figures, reason=reason).to_json()


def telling(rows: Sequence[OutputRow]) -> Sequence[OutputRow]:
    """Returns the rows whose figures sum up how exact a target is: of ordinary cases, where any was run.

    At the ends of a dtype's range an error of one rounding is 1e31 in f32; each of those rows has its own figures.
    """
    return [row for row in rows if row.kind == "ordinary"] or rows


_FIGURES = ("max_abs", "max_rel", "rmse_vs_fp64", "rmse_original_vs_fp64")


def _nan_is_largest(figure: float) -> float:
    return math.inf if math.isnan(figure) else figure


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
        return Case(kind, (), how, "an index beyond its table would end the process on a GPU")
    if special and (node := _to_integer(program)) is not None:
        return Case(kind, (), how, f"{node.name} makes integers of floats, which is undefined beyond their range")
    original = program.original or program.exported.module(check_guards=False)
    inputs, why = draw_special(original, program.contract, sizes, seed=seed, kind=kind)
    return Case(kind, inputs, how, why)


def _to_integer(program: Program) -> torch.fx.Node | None:
    """Returns the first node that converts floats to integers."""
    nodes: list[torch.fx.Node] = list(program.exported.graph.nodes)
    for node in nodes:
        made = node.meta.get("val")
        converts = getattr(getattr(node.target, "_schema", None), "name", "") in _CONVERSIONS
        if converts and isinstance(made, torch.Tensor) and not made.is_floating_point() and made.dtype != torch.bool:
            read = node.all_input_nodes[0].meta.get("val")
            if isinstance(read, torch.Tensor) and read.is_floating_point():
                return node
    return None


_CONVERSIONS = frozenset({"aten::to", "aten::_to_copy", "aten::type_as", "aten::copy_", "prims::convert_element_type"})


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


def refer(program: Program, chosen: Sequence[Case]) -> list[Reference]:
    """Runs the original in its own dtype, holds the captured program against it, and runs that in float64.

    Raises:
        UnsupportedError: one fails at some of these sizes, or they differ.
        UsageError: the original fails on what is drawn for the contract.
    """
    module = program.exported.module(check_guards=False)
    references = []
    for case in chosen:
        if case.untried:
            references.append(Reference(case, (), ()))
            continue
        original = failing_sizes.run(program.original or module, program.contract, case.inputs)
        truth = run_in_float64(program, case.inputs)
        if program.original is not None:
            captured = failing_sizes.run(module, program.contract, case.inputs)
            if reason := difference(original, captured, program.contract.outputs, truth):
                raise not_the_original(reason, program.original, f"in the case `{case.name}`")
        references.append(Reference(case, original, truth))
    return references


def tried_of(references: Sequence[Reference]) -> list[Reference]:
    """Returns the references of the cases that were run."""
    return [reference for reference in references if not reference.case.untried]


def untried_of(references: Sequence[Reference]) -> dict[str, str]:
    """Returns the cases that were not run, and why."""
    return {reference.case.name: reference.case.untried for reference in references if reference.case.untried}


def write_reference(path: Path, references: Sequence[Reference], contract: Contract) -> None:
    """Writes references as one safetensors file.

    Raises:
        FileError: the file cannot be written.
    """
    from safetensors.torch import save

    tensors: dict[str, torch.Tensor] = {}
    tried = tried_of(references)
    for index, reference in enumerate(tried):
        for kind, names, values in (
            ("input", [spec.name for spec in contract.inputs], reference.case.inputs),
            ("original", contract.outputs, reference.original),
            ("truth", contract.outputs, reference.truth),
        ):
            tensors |= {
                f"{index}/{kind}/{name}": value.detach().cpu() for name, value in zip(names, values, strict=True)
            }
    complex_names = [key for key, tensor in tensors.items() if tensor.is_complex()]
    for key in complex_names:  # not every complex dtype is one of the format's
        tensors[key] = torch.view_as_real(tensors[key].resolve_conj())
    owned = {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
    metadata = {
        "cases": json.dumps([reference.case.name for reference in tried]),
        "kinds": json.dumps([reference.case.kind for reference in tried]),
        "untried": json.dumps(untried_of(references)),
        "complex": json.dumps(complex_names),
    }
    try:
        path.write_bytes(save(owned, metadata))
    except OSError as error:
        raise FileError(f"the reference cannot be written: {error.strerror}", where=str(path)) from error


def read_reference(path: Path, contract: Contract) -> list[Reference]:
    """Reads what `write_reference` wrote, onto the contract's device; those of cases not run come last.

    Raises:
        RefusedError: the file does not fit the contract, or has no case that was run.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device=contract.device) as file:
            metadata = file.metadata()
            complex_names = set(json.loads(metadata["complex"]))

            def read(kind: str, index: int, names: Sequence[str]) -> tuple[torch.Tensor, ...]:
                keys = [f"{index}/{kind}/{name}" for name in names]
                tensors = {key: file.get_tensor(key) for key in keys}
                return tuple(
                    torch.view_as_complex(tensors[key]) if key in complex_names else tensors[key] for key in keys
                )

            inputs = [spec.name for spec in contract.inputs]
            names = json.loads(metadata["cases"])
            kinds = json.loads(metadata.get("kinds", json.dumps(["ordinary"] * len(names))))
            references = [
                Reference(
                    Case(name, read("input", index, inputs), kind),
                    read("original", index, contract.outputs),
                    read("truth", index, contract.outputs),
                )
                for index, (name, kind) in enumerate(zip(names, kinds, strict=True))
            ]
            untried = dict(json.loads(metadata.get("untried", "{}")))
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RefusedError(f"the reference does not fit the contract: {error}", where=str(path)) from error
    if not references:
        raise RefusedError(
            "the reference has no case: nothing can be proved by it", where=str(path), fix="convert the model again"
        )
    return references + [Reference(Case(name, (), untried=why), (), ()) for name, why in untried.items()]
