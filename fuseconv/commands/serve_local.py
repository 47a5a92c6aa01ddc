"""`fuseconv serve --local`: serves bundles from this process with uvicorn."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseconv.commands.log_lines import log_lines
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.served import How, introduce
from fuseconv.processes.extras import needs_extra
from fuseconv.processes.imports import imports

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.serving.service import Served, Service


def serve_here(how: How, swap_from: Path | None, *, as_json: bool, log_requests: bool) -> Outcome:
    """Serves until SIGTERM or SIGINT, and returns a summary of the requests.

    Args:
        how: the settings of the server.
        swap_from: the folder from which clients may load bundles as new weights. None to refuse such requests.
        as_json: whether log lines are JSON objects.
        log_requests: whether successful requests are logged too.

    Raises:
        UpstreamError: the address cannot be used, or a package is not installed.
        FuseconvError: a bundle does not load.
    """
    with needs_extra("serve"), imports():
        from fuseconv.serving import server
        from fuseconv.serving.app import application
        from fuseconv.serving.batching import Limits
        from fuseconv.serving.bodies import Bodies
        from fuseconv.serving.engine import Engine
        from fuseconv.serving.service import Service

    listener = server.listen(how.host, how.port)
    with shown("load"):
        engines = {
            name: Engine(path, target=how.target, signer=how.signer, warm_seconds=how.warm_up)
            for name, path in how.bundles.items()
        }
    limits = Limits(how.max_batch, how.delay, how.queue, how.timeout, how.workers)
    service = Service(engines, limits, swap_from)
    bodies = Bodies(how.max_body, memory=8 * how.max_body, timeout=how.timeout)
    url, begun = server.address(listener), time.monotonic()

    def started() -> None:
        introduce(url, how.host, {name: _described(model) for name, model in service.models.items()})

    with log_lines(as_json, everything=log_requests):
        server.run(application(service, bodies), listener, how.timeout, started)
    summary = _summary(service, time.monotonic() - begun)
    return Outcome(summary, lambda console: _print_summary(console, summary))


def _described(model: Served) -> str:
    """Describes how a model is served: its target, its device, and how its requests are batched."""
    engine, buckets = model.engine, model.engine.contract.buckets
    batches = "one request at a time (convert with --bucket to batch requests)"
    if buckets is not None:
        batches = f"batches of up to {model.limits.rows} rows of {buckets.dim}, delay {model.limits.delay * 1000:g} ms"
    return f"{engine.target} on {engine.contract.device}, {batches}"


def _summary(service: Service, seconds: float) -> dict[str, Any]:
    """Returns the server's running time in seconds and the metrics of each model, as plain JSON values."""
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
