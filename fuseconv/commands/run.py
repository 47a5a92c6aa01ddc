"""`fuseconv run`: runs a bundle on inputs from a file."""

from __future__ import annotations

from pathlib import Path

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.bundle.named_targets import check_named
from fuseconv.commands.completion import PATH
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import bundle_argument, json_option, signer_option, target_option, writable
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
    metavar="FILE",
    help="File of input tensors: .safetensors, .npz or .pt. [default: the inputs of the bundle's first case]",
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
@signer_option
@quiet_option
@json_option
def run(
    bundle: Path,
    method: str | None,
    inputs_file: Path | None,
    output: Path,
    target: str | None,
    signer: Path | None,
) -> Outcome:
    """Run BUNDLE once on the tensors in a file, and write the outputs to another file."""
    folder = chosen(bundle, method)
    manifest = read_manifest(folder)
    check_named(manifest, () if target is None else (target,), folder)
    if inputs_file is not None and not inputs_file.exists():
        inputs = ", ".join(map(str, manifest.contract.inputs))
        fix = f"check the path, or save the inputs to it, with safetensors.torch.save_file or torch.save: {inputs}"
        raise FileError("there is no such file or folder", where=str(inputs_file), fix=fix)
    if signer is not None:
        from fuseconv.provenance.signature import verify_signature

        verify_signature(bundle, signer)

    with imports():
        from fuseconv.commands import results
        from fuseconv.commands.outputs import write_outputs
        from fuseconv.contract.inputs import from_file
        from fuseconv.parity.reference import REFERENCE, read_reference
        from fuseconv.runtime.model import load

    # For one call, a capture or a warm-up costs more than it saves.
    model = load(folder, target=target, cuda_graphs=False, warm_seconds=0)
    if inputs_file is None:
        case = read_reference(folder / REFERENCE, manifest.contract)[0].case
        given, tensors = f"the case {case.name} of {REFERENCE}; name a file of your own with --inputs", case.inputs
    else:
        given, tensors = str(inputs_file), tuple(from_file(inputs_file, model.contract).values())
    returned = model(*(tensor.to(model.device) for tensor in tensors))
    outputs = (returned,) if len(model.contract.outputs) == 1 else tuple(returned)
    named = {name: value.cpu().contiguous() for name, value in zip(model.contract.outputs, outputs, strict=True)}
    write_outputs(named, output)
    shapes = {name: list(value.shape) for name, value in named.items()}
    result = {"target": model.target, "outputs": shapes, "path": str(output)}
    pairs = {
        "inputs": given,
        **{name: f"{value.dtype} {list(value.shape)}" for name, value in named.items()},
        "written": output,
    }
    return Outcome(result, lambda console: results.print_pairs(console, pairs))
