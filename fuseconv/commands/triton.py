"""`fuseconv triton`: writes a bundle as a model to a Triton Inference Server model repository."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fuseconv.commands.completion import PATH, words
from fuseconv.commands.following import fuseconv
from fuseconv.commands.methods import chosen, method_option
from fuseconv.commands.options import bundle_argument, json_option, named, target_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.verbosity import quiet_option
from fuseconv.processes.extras import needs_extra
from fuseconv.processes.imports import imports
from fuseconv.serving.names import name_of

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.tritonserver.repository import Backend

BACKENDS = ("python", "onnxruntime", "pytorch")


@click.command()
@bundle_argument
@method_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    callback=named,
    metavar="REPOSITORY",
    help="Folder of the model repository.",
)
@click.option("--name", metavar="NAME", help="Name of the model. [default: the name of the bundle]")
@click.option(
    "--backend",
    type=click.Choice(BACKENDS),
    default="python",
    show_default=True,
    shell_complete=words(BACKENDS),
    help="Triton backend that runs the model.",
)
@target_option
@click.option(
    "--instances",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Copies of the model that Triton loads, per GPU if there is one. With python, each has its own process.",
)
@click.option(
    "--served-at",
    type=PATH,
    metavar="PATH",
    help="Path of the repository on the machine that runs Triton. [default: REPOSITORY]",
)
@quiet_option
@json_option
def triton(
    bundle: Path,
    method: str | None,
    output: Path,
    name: str | None,
    backend: Backend,
    target: str | None,
    instances: int,
    served_at: Path | None,
) -> Outcome:
    """Write BUNDLE as a model into a model repository of Triton Inference Server.

    The model's config.pbtxt defines the contract, batches of the bundle's bucket sizes, and a warm-up. The backend
    python needs fuseconv[serve] in Triton's Python. Only this backend checks requests against the contract.
    """
    folder = chosen(bundle, method)
    known = name or (name_of(bundle) if method is None else f"{name_of(bundle)}-{method}")
    with imports(), needs_extra("serve"):
        from fuseconv.commands import results
        from fuseconv.tritonserver.repository import write_repository

        made = write_repository(
            folder, output, known, backend=backend, target=target, instances=instances, served_at=served_at
        )
    how = made.batching
    result = {
        "model": str(made.model),
        "name": made.name,
        "backend": backend,
        "target": made.target,
        "max_batch_size": how.limit,
        "not_batched": how.reason or None,
        "preload": list(made.preload),
    }

    def render(console: Console) -> None:
        sizes = ", ".join(map(str, how.preferred))
        pairs = {
            "model": f"{made.name} in {made.model}",
            "backend": f"{backend}, target {made.target or 'the default of the bundle'}",
            "batches": f"up to {how.limit} rows, preferably {sizes}" if how.limit else f"none: {how.reason}",
        }
        results.print_pairs(console, pairs)

    preload = f"LD_PRELOAD={shlex.quote(':'.join(made.preload))} " if made.preload else ""
    start = f"{preload}{shlex.join(('tritonserver', f'--model-repository={served_at or output}'))}"
    check = fuseconv("verify", str(folder), "--server", "http://127.0.0.1:8000", "--served-as", made.name)
    return Outcome(result, render, following=(start, *(() if backend == "pytorch" else (check,))))
