"""`fuseconv inspect`: shows the contents of a model file or a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fuseconv.bundle.files import MANIFEST, WEIGHTS
from fuseconv.bundle.manifest import Manifest, Source, open_bundle
from fuseconv.bundle.methods import has_methods, method_folder, open_methods
from fuseconv.bundle.tuned import Speed
from fuseconv.commands.completion import PATH
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import existing_model, json_option, model_options, reading
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.contract.spec import Contract
from fuseconv.processes.imports import imports


@click.command()
@click.argument("path", type=PATH, callback=existing_model)
@method_option
@model_options
@json_option
def inspect(path: Path, method: str | None, **source: Any) -> Outcome:
    """Show the format, contract and sizes of a model file or a bundle, and a bundle's targets, rules and parity."""
    path = chosen(path, method)
    if has_methods(path):
        return _methods(path)
    if (path / MANIFEST).is_file():
        return _bundle(open_bundle(path))
    return _model(path, reading(**source))


def _bundle(manifest: Manifest) -> Outcome:
    """Returns the content of the manifest of a bundle, or of one method."""
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text

    pairs = {
        "inputs": ", ".join(map(str, manifest.contract.inputs)),
        "outputs": ", ".join(manifest.contract.outputs),
        "device": manifest.contract.device,
        "dtype": manifest.dtype,
        "targets": ", ".join(sorted(manifest.targets)),
        **{f"packages of {one.target}": _architectures(manifest, one.target) for one in manifest.packages},
        "rules": ", ".join(f"{rule.name} x{rule.count}" for rule in manifest.rules) or "none",
        "parity": "fails (kept with --allow-mismatch)" if manifest.mismatch else f"ok, {len(manifest.parity)} rows",
        "size": size_text(sum(file.size for file in manifest.files.values())),
        "made with": f"fuseconv {manifest.fuseconv}, torch {manifest.environment.torch}",
        "source": _source(manifest.source),
        "command": " ".join(manifest.invocation.command) if manifest.invocation else "",
        "revision": (manifest.invocation.revision or "") if manifest.invocation else "",
        "timed on": manifest.tuned.device if manifest.tuned else "",
        "original": manifest.source.original or "",
        **{f"time: {target}": str(speed) for target, speed in _speeds(manifest)},
        **{f"left out: {left.target}": f"{left.cause}: {left.reason}" for left in manifest.left_out},
        **{f"limit: {one.target}": f"case {one.case}, output {one.output}: {one.reason}" for one in manifest.limits},
    }
    known = {name: value for name, value in pairs.items() if value}
    return Outcome(manifest.model_dump(mode="json"), lambda console: results.print_pairs(console, known))


def _architectures(manifest: Manifest, target: str) -> str:
    """Formats the architectures for which a target was compiled, the one of the conversion first."""
    return ", ".join(one.environment.architecture for one in manifest.packages_of(target))


def _source(source: Source) -> str:
    """Formats the source of a conversion: its format, its hash, and the commit on a hub if it is from there."""
    from_hub = f", hf://{source.repository}@{source.commit}" if source.repository else ""
    return f"{source.form}, sha256 {source.sha256}{from_hub}"


def _methods(folder: Path) -> Outcome:
    """Returns the manifests of a bundle with several methods."""
    from fuseconv.commands import results
    from fuseconv.commands.table import size_text

    whole = open_methods(folder)
    manifests = {name: open_bundle(method_folder(folder, name), shared=False) for name in whole.methods}
    files = [*whole.files.values(), *(file for one in manifests.values() for file in one.files.values())]
    pairs = {
        **{name: _signature(one.contract) for name, one in manifests.items()},
        **{f"targets of {name}": ", ".join(sorted(one.targets)) for name, one in manifests.items()},
        "parity": "fails (kept with --allow-mismatch)" if any(one.mismatch for one in manifests.values()) else "ok",
        "weights": size_text(whole.files[WEIGHTS].size),
        "size": size_text(sum(file.size for file in files)),
        "made with": f"fuseconv {whole.fuseconv}",
    }
    result = {
        **whole.model_dump(mode="json"),
        "methods": {name: one.model_dump(mode="json") for name, one in manifests.items()},
    }
    return Outcome(result, lambda console: results.print_pairs(console, pairs))


def _signature(contract: Contract) -> str:
    """Formats the inputs and outputs of a contract as `(INPUTS) -> (OUTPUTS)`."""
    return f"({', '.join(map(str, contract.inputs))}) -> ({', '.join(contract.outputs)})"


def _speeds(manifest: Manifest) -> list[tuple[str, Speed]]:
    """Returns the times of the targets, fastest first."""
    return [] if manifest.tuned is None else [(name, manifest.tuned.speeds[name]) for name in manifest.tuned.fastest()]


def _model(path: Path, options: Any) -> Outcome:
    """Reads a model file, and returns its format, contract and sizes."""
    with imports():
        from fuseconv.commands import results
        from fuseconv.commands.table import size_text
        from fuseconv.pipeline.read import read_program

    subject, program = read_program(path, options, shown)
    tensors = program.exported.state_dict.values()
    calls = [node for node in program.exported.graph.nodes if node.op == "call_function"]
    result = {
        "form": subject.source,
        "sha256": subject.sha256,
        "contract": program.contract.to_json(),
        "parameters": sum(tensor.numel() for tensor in tensors),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "nodes": len(calls),
    }
    pairs = {
        "form": subject.source,
        "inputs": ", ".join(map(str, program.contract.inputs)),
        "outputs": ", ".join(program.contract.outputs),
        "parameters": f"{result['parameters']:,}",
        "size": size_text(result["bytes"]),
        "nodes": result["nodes"],
        "sha256": subject.sha256,
    }
    return Outcome(result, lambda console: results.print_pairs(console, pairs))
