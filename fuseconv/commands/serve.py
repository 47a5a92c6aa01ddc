"""`fuseconv serve`: serves bundles over HTTP, from this process or on Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.commands.numbers import FiniteRange
from fuseconv.commands.options import target_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.served import How
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import UsageError
from fuseconv.serving.names import named_bundle


def _bundles(_context: click.Context, _argument: click.Parameter, words: tuple[str, ...]) -> dict[str, Path]:
    """Parses `[NAME=]PATH` words. The name of a path without a name is its folder's name without `.fuseconv`."""
    bundles: dict[str, Path] = {}
    for word in words:
        name, folder = named_bundle(word)
        if name in bundles:
            raise UsageError(f"two bundles have the name {name}", where=word, fix="name one of them: NAME=PATH")
        read_manifest(folder)
        bundles[name] = folder
    return bundles


@click.command()
@click.argument("bundles", nargs=-1, required=True, metavar="[NAME=]BUNDLE...", callback=_bundles)
@click.option("--local", is_flag=True, help="Serve from this process. [default: with Ray Serve]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 is a free one.")
@target_option
@click.option(
    "--max-batch",
    type=click.IntRange(0),
    default=0,
    metavar="ROWS",
    help="Rows of a batch at most. [default: the largest bucket]",
)
@click.option(
    "--delay",
    type=FiniteRange(0, 10_000),
    default=2.0,
    show_default=True,
    metavar="MS",
    help="How long a request waits for others to share its batch.",
)
@click.option(
    "--queue",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="Requests of a model that may wait; then 429.",
)
@click.option(
    "--timeout",
    type=FiniteRange(0.001),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Time for a request, and for its body to arrive; then 504, or 408.",
)
@click.option(
    "--max-body", type=click.IntRange(1), default=64, show_default=True, metavar="MB", help="Size of a body; then 413."
)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Batches of a model at the same time."
)
@click.option("--replicas", type=click.IntRange(1), default=1, show_default=True, help="Processes on Ray Serve.")
@click.option(
    "--gpus", type=FiniteRange(0), default=0.0, show_default=True, help="Share of a GPU per replica on Ray Serve."
)
@click.option(
    "--swap-from",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Let clients load the bundles in this folder as new weights. [default: they may not]",
)
@click.option("--log-requests", is_flag=True, help="Log every request. [default: those that fail]")
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
    **limits: Any,
) -> Outcome:
    """Serve bundles over HTTP with the KServe v2 inference protocol, and batch requests.

    A model is named like the folder of its bundle, without .fuseconv, or NAME. SIGTERM and Ctrl-C stop the server after
    the requests that it accepted are answered. There is no authentication: see docs/serving.md.
    """
    if local and (replicas != 1 or gpus):
        raise UsageError("--replicas and --gpus are for Ray Serve", where="--local", fix="remove them, or --local")
    if not local and (swap_from is not None or log_requests or as_json):
        fix = "add --local; with Ray Serve, weights are exchanged by `user_config`, and logs are those of Ray"
        raise UsageError("--swap-from, --log-requests and --json need --local", where="--local", fix=fix)
    how = How(bundles, host, port, target, max_body * 2**20, delay=limits.pop("delay") / 1000, **limits)
    if local:
        from fuseconv.commands.serve_local import serve_here

        return serve_here(how, swap_from, as_json=as_json, log_requests=log_requests)
    from fuseconv.commands.serve_ray import serve_on_ray

    return serve_on_ray(how, replicas, gpus)
