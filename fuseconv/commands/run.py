"""`fuseconv run`: runs a bundle on inputs from a file."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.commands.completion import PATH
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import bundle_argument, json_option, target_option, writable
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import FileError, UsageError
from fuseconv.processes.imports import imports

FORMATS = (".safetensors", ".npz", "")
"""The allowed suffixes of output files. A file without a suffix is a safetensors file."""


def _writable(context: click.Context, argument: click.Parameter, path: Path) -> Path:
    """Checks that the output path is writable and that its suffix is a supported format."""
    if path.suffix not in FORMATS:
        what = f"the outputs cannot be written as {path.suffix}"
        raise UsageError(what, where=str(path), fix=f"use a path that ends with {' or '.join(filter(None, FORMATS))}")
    return writable(context, argument, path)


@click.command()
@bundle_argument
@method_option
@click.option(
    "--inputs",
    "inputs_file",
    type=PATH,
    required=True,
    metavar="FILE",
    help="File of input tensors: .safetensors, .npz or .pt.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    metavar="FILE",
    callback=_writable,
    help="Output file: .safetensors or .npz.",
)
@target_option
@quiet_option
@json_option
def run(bundle: Path, method: str | None, inputs_file: Path, output: Path, target: str | None) -> Outcome:
    """Run BUNDLE once on the tensors in a file, and write the outputs to another file."""
    folder = chosen(bundle, method)
    manifest = read_manifest(folder)
    if not inputs_file.exists():
        inputs = ", ".join(map(str, manifest.contract.inputs))
        fix = f"check the path, or save the inputs to it, with safetensors.torch.save_file or torch.save: {inputs}"
        raise FileError("there is no such file or folder", where=str(inputs_file), fix=fix)

    with imports():
        from fuseconv.commands import results
        from fuseconv.commands.outputs import write_outputs
        from fuseconv.contract.inputs import from_file
        from fuseconv.runtime.model import load

    model = load(folder, target=target, cuda_graphs=False)  # for one call, a capture costs more than it saves
    tensors = from_file(inputs_file, model.contract)
    returned = model(*(tensors[spec.name].to(model.device) for spec in model.contract.inputs))
    outputs = (returned,) if len(model.contract.outputs) == 1 else tuple(returned)
    named = {name: value.cpu().contiguous() for name, value in zip(model.contract.outputs, outputs, strict=True)}
    write_outputs(named, output)
    shapes = {name: list(value.shape) for name, value in named.items()}
    result = {"target": model.target, "outputs": shapes, "path": str(output)}
    pairs = {**{name: f"{value.dtype} {list(value.shape)}" for name, value in named.items()}, "written": output}
    return Outcome(result, lambda console: results.print_pairs(console, pairs))
