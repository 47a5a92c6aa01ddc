"""Contains what `fuseconv serve` with and without `--local` share: the settings, and the message at the start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fuseconv.commands.streams import is_quiet, tell

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class How:
    """The settings of a server: what to serve, where, and within which limits. Times are in seconds, sizes in bytes."""

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


def introduce(url: str, host: str, models: Mapping[str, str]) -> None:
    """Prints where and how the models are served, how to call a model, and which protection is missing.

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
