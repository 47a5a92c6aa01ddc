"""`fuseconv serve`: serves bundles over HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.commands.extras import needs_extra
from fuseconv.commands.log_lines import log_lines
from fuseconv.commands.options import target_option
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.streams import is_quiet, tell
from fuseconv.commands.verbosity import quiet_option
from fuseconv.errors import UsageError
from fuseconv.processes.imports import imports
from fuseconv.serving.names import named_bundle

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.serving.service import Service

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _bundles(_context: click.Context, _argument: click.Parameter, words: tuple[str, ...]) -> dict[str, Path]:
    """Returns the bundle of each name. A path without a name is named like its folder, without `.fuseconv`."""
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
    type=click.FloatRange(0, 10_000),
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
    type=click.FloatRange(0.001),
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
    swap_from: Path | None,
    log_requests: bool,
    as_json: bool,
    **limits: Any,
) -> Outcome:
    """Serve bundles over HTTP with the KServe v2 inference protocol, and batch requests.

    A model is named like the folder of its bundle, without .fuseconv, or NAME. SIGTERM and Ctrl-C stop the server after
    the requests that it accepted are answered. There is no authentication: see docs/serving.md.
    """
    if not local:
        raise UsageError("only --local is available", where="--local", fix="add --local")
    with needs_extra("serve"), imports():
        from fuseconv.serving import server
        from fuseconv.serving.app import application
        from fuseconv.serving.batching import Limits
        from fuseconv.serving.bodies import Bodies
        from fuseconv.serving.engine import Engine
        from fuseconv.serving.service import Service

    listener = server.listen(host, port)
    with shown("load"):
        engines = {name: Engine(path, target=target) for name, path in bundles.items()}
    rows, delay = limits.pop("max_batch"), limits.pop("delay") / 1000
    each = Limits(rows=rows, delay=delay, **limits)
    service = Service(engines, each, swap_from)
    bodies = Bodies(max_body * 2**20, memory=8 * max_body * 2**20, timeout=each.timeout)
    url, begun = server.address(listener), time.monotonic()
    with log_lines(as_json, everything=log_requests):
        server.run(application(service, bodies), listener, each.timeout, lambda: _introduce(service, url, host))
    summary = _summary(service, time.monotonic() - begun)
    return Outcome(summary, lambda console: _print_summary(console, summary))


def _introduce(service: Service, url: str, host: str) -> None:
    """Says what is served, how it is called, and what does not protect it."""
    if is_quiet():
        return
    lines = [f"serving on {url}; Ctrl-C stops"]
    for model in service.models.values():
        engine, rows = model.engine, model.limits.rows
        buckets = engine.contract.buckets
        how = "one request at a time: convert with --bucket to batch them"
        if buckets is not None:
            how = f"batches of up to {rows} rows of {buckets.dim}, delay {model.limits.delay * 1000:g} ms"
        lines.append(f"    {model.name}: {engine.target} on {engine.contract.device}, {how}")
    first = next(iter(service.models))
    lines.append(f"    try: curl {url}/v2/models/{first}")
    lines.append("no authentication, no TLS: put a reverse proxy that has both in front")
    if host not in LOOPBACK:
        lines.append(f"warning: everyone who reaches {host} can send requests")
    tell("\n".join(lines))


def _summary(service: Service, seconds: float) -> dict[str, Any]:
    """Returns what a server did, as plain JSON values."""
    models = {name: service.metrics.summary(name) for name in service.models}
    return {"seconds": round(seconds, 3), "models": models}


def _print_summary(console: Console, summary: Mapping[str, Any]) -> None:
    """Prints one row per model: the requests by status, the batches, and the mean latency."""
    from fuseconv.commands.table import Table

    table = Table("model", "requests", "batches", "rows", "mean ms", numbers=("batches", "rows", "mean ms"))
    for name, model in summary["models"].items():
        requests = ", ".join(f"{count} x {status}" for status, count in model["requests"].items()) or "none"
        mean = "" if model["mean_latency_ms"] is None else f"{model['mean_latency_ms']:.1f}"
        table.add(name, requests, str(model["batches"]), str(model["rows"]), mean)
    console.print(table)
    console.print(f"\nserved for {summary['seconds']:.1f} s", highlight=False)
