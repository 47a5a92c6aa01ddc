"""`fuseconv serve`: serves bundles over HTTP, from this process or on Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import gpus_option, signer_option, target_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.served import How
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import UsageError
from fuseconv.processes.extras import needs_extra
from fuseconv.serving.names import named_bundle


def _bundles(_context: click.Context, _argument: click.Parameter, words: tuple[str, ...]) -> dict[str, Path]:
    """Parses `[NAME=]PATH` words. The name of a path without a name is its folder's name without `.fuseconv`."""
    bundles: dict[str, Path] = {}
    for word in words:
        name, folder = named_bundle(word)
        if name in bundles:
            raise UsageError(
                f"two bundles have the name {name}", where=word, fix="give one of them another name, with NAME=PATH"
            )
        read_manifest(folder)
        bundles[name] = folder
    return bundles


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="[NAME=]BUNDLE...", callback=_bundles)
@click.option("--local", is_flag=True, help="Serve from this process. [default: Ray Serve]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port. 0 means any free port."
)
@target_option
@click.option(
    "--max-batch",
    type=click.IntRange(0),
    default=0,
    metavar="ROWS",
    help="Maximum number of rows in a batch. [default: the largest bucket]",
)
@click.option(
    "--delay",
    type=FiniteRange(0, 10_000),
    default=2.0,
    show_default=True,
    metavar="MS",
    help="Maximum time that a request waits for other requests to share its batch.",
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Maximum number of waiting requests per model. Further requests get status 429.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.001),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Time limit for a request (then status 504), and for its body to arrive (then status 408).",
)
@click.option(
    "--max-body",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    metavar="MB",
    help="Maximum size of a body. Larger requests get status 413.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of batches of a model that run at the same time.",
)
@click.option(
    "--warm-up",
    type=FiniteRange(0, 600),
    default=5.0,
    show_default=True,
    metavar="S",
    help="Time for which each model is called at sizes throughout its ranges before the server accepts requests.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of replicas (processes) on Ray Serve.",
)
@gpus_option("replica")
@click.option(
    "--swap-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Folder of bundles whose weights clients may load. [default: clients may load none]",
)
@signer_option
@click.option("--log-requests", is_flag=True, help="Log every request. [default: only requests that fail]")
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Log JSON lines, and print the summary as one JSON object.")
def serve(
    bundles: Mapping[str, Path],
    local: bool,
    host: str,
    port: int,
    target: str | None,
    max_body: int,
    replicas: int,
    gpus: float,
    swap_from: Path | None,
    log_requests: bool,
    as_json: bool,
    signer: Path | None,
    **limits: Any,
) -> Outcome:
    """Serve bundles over HTTP with the KServe v2 inference protocol, and batch requests.

    A model's name is NAME, or else the name of the bundle's folder without .fuseconv. On SIGTERM or Ctrl-C, the server
    answers the requests that it has accepted, and stops. It does not authenticate clients: see docs/serving.md.
    """
    if local and (replicas != 1 or gpus):
        fix = "remove --replicas and --gpus, or remove --local"
        raise UsageError("--replicas and --gpus apply only to Ray Serve", where="--local", fix=fix)
    if not local and (swap_from is not None or log_requests or as_json):
        fix = "add --local; with Ray Serve, `user_config` replaces the weights, and Ray writes the logs"
        raise UsageError("--swap-from, --log-requests and --json need --local", where="--local", fix=fix)
    if signer is not None:
        with needs_extra("sign"):
            import model_signing  # noqa: F401
    delay = limits.pop("delay") / 1000
    how = How(bundles, host, port, target, max_body * 2**20, delay=delay, signer=signer, **limits)
    if local:
        from fuseconv.commands.serve_local import serve_here

        return serve_here(how, swap_from, as_json=as_json, log_requests=log_requests)
    from fuseconv.commands.serve_ray import serve_on_ray

    return serve_on_ray(how, replicas, gpus)
