"""The result of converting one model of a list, as it is stored beside the bundle. Does not import torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Row:
    """The result of converting one model, as plain JSON values.

    Attributes:
        name: the name of the model.
        model: the path of the model.
        status: `made`, `kept` (the bundle was already up to date) or `failed`.
        bundle: the folder of the bundle. Empty if the conversion failed.
        targets: the names of the targets in the bundle. Empty if the conversion failed.
        fusions: the number of matches that were replaced.
        max_abs: the largest absolute error over all targets, compared with the original model. None if not known.
        seconds: the total duration of all tries in seconds.
        tries: the number of tries, including those whose worker ended.
        exit_status: the exit status of the last try. -9 if the process was killed.
        error: what failed, where, and how to fix it. Empty if nothing failed.
        fingerprint: the hash of the model, rules, options and versions from which the bundle was built.
        manifest: the SHA-256 of the bundle's manifest. Empty if the conversion failed.
        node: the name of the machine that made the bundle, and on Ray also the first digits of its node ID.
    """

    name: str
    model: str
    status: Literal["made", "kept", "failed"]
    bundle: str = ""
    targets: tuple[str, ...] = ()
    fusions: int = 0
    max_abs: float | None = None
    seconds: float = 0.0
    tries: int = 0
    exit_status: int = 0
    error: str = ""
    fingerprint: str = ""
    manifest: str = ""
    node: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return asdict(self)
