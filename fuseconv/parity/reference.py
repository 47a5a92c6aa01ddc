"""Computes, stores and reads the expected outputs of each case: the original model's, and the float64 reference."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from fuseconv.bundle import manifest
from fuseconv.capture.agreement import difference, not_the_original
from fuseconv.contract.spec import Contract
from fuseconv.errors import RefusedError
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.parity.cases import Case
from fuseconv.program.captured import Program
from fuseconv.sizes import failing_sizes
from fuseconv.weights import tensor_file

REFERENCE = manifest.REFERENCE


@dataclass(frozen=True)
class Reference:
    """The expected outputs of a case in the model's dtype and in float64. Both are empty if the case was not run."""

    case: Case
    original: tuple[torch.Tensor, ...]
    fp64: tuple[torch.Tensor, ...]


def refer(program: Program, chosen: Sequence[Case]) -> list[Reference]:
    """Computes the reference outputs of the test cases, and checks the captured program against the original model.

    The original model runs in its own dtype. The captured program runs in this dtype and in float64.

    Raises:
        UnsupportedError: the original or the captured program fails at some sizes, or the two differ.
        UsageError: the original fails on random inputs for the contract.
    """
    module = program.exported.module(check_guards=False)
    references = []
    for case in chosen:
        if case.untried:
            references.append(Reference(case, (), ()))
            continue
        original = failing_sizes.run(program.original or module, program.contract, case.inputs)
        fp64 = run_in_float64(program, case.inputs)
        if program.original is not None:
            captured = failing_sizes.run(module, program.contract, case.inputs)
            if reason := difference(original, captured, program.contract.outputs, fp64):
                raise not_the_original(reason, program.original, f"in the case `{case.name}`")
        references.append(Reference(case, original, fp64))
    return references


def tried_of(references: Sequence[Reference]) -> list[Reference]:
    """Returns only the references of cases that were run."""
    return [reference for reference in references if not reference.case.untried]


def untried_of(references: Sequence[Reference]) -> dict[str, str]:
    """Maps the name of each case that was not run to the reason."""
    return {reference.case.name: reference.case.untried for reference in references if reference.case.untried}


def uncompared_of(references: Sequence[Reference], contract: Contract) -> tuple[str, ...]:
    """Returns the names of the outputs that have elements in an ordinary case, but no finite element in any of them."""
    ordinary = [reference for reference in tried_of(references) if reference.case.kind == "ordinary"]
    values = {name: [one.fp64[at] for one in ordinary] for at, name in enumerate(contract.outputs)}
    return tuple(
        name
        for name, given in values.items()
        if any(value.numel() for value in given) and not any(bool(value.isfinite().any()) for value in given)
    )


def write_reference(path: Path, references: Sequence[Reference], contract: Contract) -> None:
    """Writes references to one safetensors file. For a case that was not run, writes only the name and the reason.

    Raises:
        FileError: the file cannot be written.
    """
    tensors: dict[str, torch.Tensor] = {}
    tried = tried_of(references)
    for index, reference in enumerate(tried):
        for kind, names, values in (
            ("input", [spec.name for spec in contract.inputs], reference.case.inputs),
            ("original", contract.outputs, reference.original),
            ("truth", contract.outputs, reference.fp64),
        ):
            tensors |= {
                f"{index}/{kind}/{name}": value.detach().cpu() for name, value in zip(names, values, strict=True)
            }
    complex_names = [key for key, tensor in tensors.items() if tensor.is_complex()]
    for key in complex_names:  # safetensors does not support every complex dtype
        tensors[key] = torch.view_as_real(tensors[key].resolve_conj())
    owned = {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in tensors.items()}
    metadata = {
        "cases": json.dumps([reference.case.name for reference in tried]),
        "kinds": json.dumps([reference.case.kind for reference in tried]),
        "untried": json.dumps(untried_of(references)),
        "complex": json.dumps(complex_names),
    }
    tensor_file.write(path, owned, metadata)


def read_reference(path: Path, contract: Contract) -> list[Reference]:
    """Reads references from a file that `write_reference` wrote, onto the contract's device.

    Cases that were not run come last.

    Raises:
        RefusedError: the file does not match the contract, or contains no case that was run.
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
        raise RefusedError(f"the bundle's reference does not fit the contract: {error}", where=str(path)) from error
    if not references:
        raise RefusedError(
            "the bundle's reference has no cases to verify",
            where=str(path),
            fix="convert the model again",
        )
    return references + [Reference(Case(name, (), untried=why), (), ()) for name, why in untried.items()]
