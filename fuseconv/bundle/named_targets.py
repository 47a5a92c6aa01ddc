"""Checks the targets of a bundle that a caller names, without torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import UsageError


def check_named(manifest: Manifest, names: Iterable[str], folder: Path) -> None:
    """Checks that a bundle contains the named targets.

    Raises:
        UsageError: the bundle does not contain one of the targets. The error says why the conversion left it out.
    """
    left_out = {one.target: f": the conversion left it out: {one.reason}" for one in manifest.left_out}
    for name in names:
        if name not in manifest.targets:
            raise no_target(f" {name}{left_out.get(name, '')}", manifest, folder)


def no_target(what: str, manifest: Manifest, folder: Path) -> UsageError:
    """Returns the error for a target that a bundle does not contain. `what` follows the words `has no target`."""
    fix = f"use one of {', '.join(sorted(manifest.targets))}"
    return UsageError(f"the bundle has no target{what}", where=str(folder), fix=fix)
