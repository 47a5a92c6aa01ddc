"""Defines the settings and the startup message that `fuseconv serve` shares between `--local` and Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuseconv.commands.streams import is_quiet, tell

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class How:
    """The settings of a server.

    Attributes:
        bundles: the folder of each bundle, by the name of the model.
        host: the address to listen on.
        port: the port to listen on.
        target: the target to load. None for the default target of each bundle.
        max_body: the maximum size of a request body in bytes.
        max_batch: the maximum number of rows in a batch. 0 means the largest bucket.
        delay: for how many seconds the first request of a batch waits for further requests.
        queue: the maximum number of waiting requests per model.
        timeout: the number of seconds after which a request times out.
        workers: the number of batches of a model that run at the same time.
        warm_up: for about how many seconds to warm up each model before the server accepts requests.
        signer: the public key of whoever must have signed every bundle. None to serve unsigned bundles.
    """

    bundles: Mapping[str, Path]
    host: str
    port: int
    target: str | None
    max_body: int
    max_batch: int
    delay: float
    queue: int
    timeout: float
    workers: int
    warm_up: float
    signer: Path | None = None


def introduce(url: str, host: str, models: Mapping[str, str]) -> None:
    """Prints the URL, how each model is served, a command to try, and warnings about missing protection to stderr.

    Args:
        url: the URL of the server.
        host: the address on which the server listens.
        models: a description of how each model is served, by the model's name.
    """
    if is_quiet():
        return
    lines = [f"serving on {url}; Ctrl-C stops"]
    lines += [f"    {name}: {how}" for name, how in models.items()]
    lines.append(f"    try: curl {url}/v2/models/{next(iter(models))}")
    lines.append("no authentication and no TLS: put a reverse proxy that provides both in front of the server")
    if host not in LOOPBACK:
        lines.append(f"warning: everyone who can reach {host} can send requests")
    tell("\n".join(lines))
