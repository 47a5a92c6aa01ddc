"""`fuseconv run`: runs a bundle on inputs from a file."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.commands.options import bundle_argument, existing, json_option, target_option, writable
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option


@click.command()
@bundle_argument
@click.option(
    "--inputs",
    "inputs_file",
    type=Path,
    required=True,
    metavar="FILE",
    callback=existing,
    help="Input tensors: .safetensors, .npz or .pt.",
)
@click.option(
    "-o",
    "--output",
    type=Path,
    required=True,
    metavar="FILE",
    callback=writable,
    help="Output file: .safetensors.",
)
@target_option
@quiet_option
@json_option
def run(bundle: Path, inputs_file: Path, output: Path, target: str | None) -> Outcome:
    """Run BUNDLE once on the tensors in a file, and write its outputs to another file."""
    from safetensors.torch import save

    from fuseconv.commands import report
    from fuseconv.contract.inputs import from_file
    from fuseconv.runtime.model import load

    model = load(bundle, target=target, cuda_graphs=False)  # a capture does not pay off for one call
    tensors = from_file(inputs_file, model.contract)
    results = model(*(tensors[spec.name].to(model.device) for spec in model.contract.inputs))
    outputs = (results,) if len(model.contract.outputs) == 1 else tuple(results)
    named = {name: value.cpu().contiguous() for name, value in zip(model.contract.outputs, outputs, strict=True)}
    output.write_bytes(save(named))
    shapes = {name: list(value.shape) for name, value in named.items()}
    result = {"target": model.target, "outputs": shapes, "path": str(output)}
    pairs = {**{name: f"{value.dtype} {list(value.shape)}" for name, value in named.items()}, "written": output}
    return Outcome(result, lambda console: report.print_pairs(console, pairs))
