"""Parity: every target of a bundle against the original model and against the float64 truth, on several inputs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from fuseconv import failing_sizes
from fuseconv.bundle import Manifest, open_bundle
from fuseconv.capture import Program
from fuseconv.contract import Contract
from fuseconv.errors import ContractError, FileError, RefusedError, UpstreamError, UsageError
from fuseconv.inputs import draw, example_sizes, sizes_to_try
from fuseconv.padding import batched, hard, rows_of, unpadded
from fuseconv.runtime import Model, check_device, load_target
from fuseconv.sources.subject import Options, digest
from fuseconv.targets.artifact import dim_symbols
from fuseconv.tolerance import Row, compare, incomparable
from fuseconv.truth import run_in_float64

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
    """One output of one target in one case of a kind."""

    target: str
    case: str
    output: str
    row: Row
    kind: Kind = "ordinary"

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        named = {"target": self.target, "case": self.case, "kind": self.kind, "output": self.output}
        return {**named, **self.row.to_json()}


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
        return bool(self.rows) and all(row.row.ok for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values: `ok`, the worst figures of each target, the rows, and the cases not run."""
        targets = dict.fromkeys(row.target for row in self.rows)
        return {
            "ok": self.ok,
            "targets": {target: worst([row for row in self.rows if row.target == target]) for target in targets},
            "rows": [row.to_json() for row in self.rows],
            "untried": dict(self.untried),
        }


def worst(rows: Sequence[OutputRow]) -> dict[str, Any]:
    """Returns whether all rows pass, the largest of each figure, and the first reason, as plain JSON values."""
    figures = {name: max((getattr(row.row, name) for row in rows), key=_nan_is_largest) for name in _FIGURES}
    reason = next((row.row.reason for row in rows if row.row.reason), "")
    return Row(ok=all(row.row.ok for row in rows), **figures, reason=reason).to_json()


_FIGURES = ("max_abs", "max_rel", "rmse_vs_fp64", "rmse_original_vs_fp64")


def _nan_is_largest(figure: float) -> float:
    return math.inf if math.isnan(figure) else figure


def cases(program: Program, *, seed: int = 0) -> list[Case]:
    """Chooses the calls to try: the given one, others at every kind of size, and a batch of zeros and large values.

    Sizes are halved until what is drawn has at most `MAX_INPUT_ELEMENTS` and gives at most `MAX_OUTPUT_ELEMENTS`.
    """
    contract = program.contract
    chosen = [Case("given", program.examples)]
    # Each with a seed of its own: two that come out at one size are still two.
    for own_seed, (name, sizes) in enumerate(sizes_to_try(contract, seed=seed).items(), seed):
        chosen.append(Case(name, draw(contract, _affordable(program, sizes), seed=own_seed)))
    sizes = _affordable(program, example_sizes(contract))
    chosen.append(Case("zeros and large", draw(contract, sizes, seed=seed, kind="zeros and large")))
    return chosen


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
    """Runs the original program, in its own dtype and in float64.

    Raises:
        UnsupportedError: it fails at some of these sizes.
        UsageError: it fails on what is drawn for the contract.
    """
    module = program.exported.module(check_guards=False)
    references = []
    for case in chosen:
        if case.untried:
            references.append(Reference(case, (), ()))
            continue
        original = failing_sizes.run(module, program.contract, case.inputs)
        references.append(Reference(case, original, run_in_float64(program, case.inputs)))
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


def verify(
    bundle: str | Path, *, against: Program | None = None, inputs: tuple[torch.Tensor, ...] | None = None
) -> Report:
    """Runs every target of a bundle and judges each output.

    Args:
        bundle: the folder.
        against: the original program; by default its outputs are read from the bundle.
        inputs: one tensor per contract input, tried instead of the usual cases; needs `against`.

    Raises:
        UsageError: there is no such bundle, `against` is another model, or `inputs` came without it.
        RefusedError: the bundle is damaged.
        UnsupportedError: a target cannot run here.
        UpstreamError: there is no CUDA device, or an artifact does not load.
    """
    folder = Path(bundle).absolute()
    manifest = open_bundle(folder)
    every = references_of(folder, manifest, against, inputs)
    references = tried_of(every)
    rows: list[OutputRow] = []
    for target in sorted(manifest.targets):
        model = load_target(folder, manifest, target)
        for reference in references:
            rows += judge(target, manifest.contract, reference, partial(outputs_of, model))
        rows += _judge_padded(model, references)
    return Report(tuple(rows), untried_of(every))


def as_converted(manifest: Manifest, model: str | Path, options: Options) -> Options:
    """Returns how to read the model that a bundle was made of: with the bundle's inputs, dtype and device.

    Raises:
        FileError: the model cannot be read.
        UsageError: it is another.
    """
    sha256 = digest(Path(model))
    if sha256 != manifest.source.sha256:
        raise UsageError(
            f"{model} is not what the bundle was made of: its sha256 is {sha256}",
            where="--against",
            fix=f"name the model with sha256 {manifest.source.sha256}",
        )
    contract = manifest.contract
    return replace(
        options,
        inputs=options.inputs or contract.inputs,
        dtype=options.dtype or manifest.source.dtype,
        device=contract.device,
    )


def references_of(
    folder: Path, manifest: Manifest, against: Program | None, inputs: tuple[torch.Tensor, ...] | None
) -> list[Reference]:
    """Returns what a bundle is judged by: read from it, or made anew `against` the original; errors as in `verify`."""
    contract = manifest.contract
    check_device(contract.device, folder)
    if against is None:
        if inputs is not None:
            raise UsageError(
                "only the original model can say what other inputs must give",
                where="--inputs",
                fix="add --against MODEL",
            )
        return read_reference(folder / REFERENCE, contract)
    if _signature(against.contract) != _signature(contract):
        raise UsageError(
            f"the model's contract is {_signature(against.contract)}, the bundle's is {_signature(contract)}",
            where="--against",
            fix="name the model that the bundle was made of, with the same --input",
        )
    return refer(against, cases(against) if inputs is None else [Case("given", contract.bind(inputs, {}))])


def _signature(contract: Contract) -> str:
    return f"{', '.join(map(str, contract.inputs))} -> {', '.join(contract.outputs)} on {contract.device}"


def outputs_of(model: Model, case: Case) -> tuple[torch.Tensor, ...]:
    """Calls a model on a case; a tuple also of one output."""
    result = model(*case.inputs)
    return (result,) if len(model.contract.outputs) == 1 else tuple(result)


def judge(
    target: str,
    contract: Contract,
    reference: Reference,
    run: Callable[[Case], Sequence[torch.Tensor]],
) -> list[OutputRow]:
    """Runs a case and compares each output; where it fails to run, each is a row that says so.

    Of a case that was not run there are none.
    """
    if reference.case.untried:
        return []
    try:
        triples = zip(run(reference.case), reference.original, reference.truth, strict=True)
        judged = [compare(*triple) for triple in triples]
    except (UpstreamError, ContractError) as error:
        judged = [incomparable(error.what)] * len(contract.outputs)
    rows = zip(contract.outputs, judged, strict=True)
    return [OutputRow(target, reference.case.name, name, row, reference.case.kind) for name, row in rows]


def _judge_padded(model: Model, references: Sequence[Reference]) -> list[OutputRow]:
    """Judges the first case that a bucket has room for, filled up with hard rows: they must not show in its own."""
    contract, buckets = model.contract, model.contract.buckets
    if buckets is None:
        return []
    has = batched(contract, buckets)
    sizes = {index: rows_of(reference.case.inputs, has) for index, reference in enumerate(references)}
    index = next((index for index, rows in sizes.items() if buckets.rounded(rows) > rows), None)
    if index is None:
        return []
    reference, rows = references[index], sizes[index]
    name = f"{reference.case.name}, padded to {buckets.dim} {buckets.rounded(rows)}"
    padded = replace(reference, case=Case(name, hard(contract, buckets, reference.case.inputs)))
    return judge(model.target, contract, padded, lambda case: unpadded(outputs_of(model, case), contract, rows))
