"""A file of results: what machine they are of, and its rows; a run replaces the rows that it measures again."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

Row = dict[str, Any]

LONGEST_REASON = 200


def _newer(_old: Row, new: Row) -> Row:
    return new


def write(
    path: Path,
    rows: Sequence[Row],
    machine: Mapping[str, Any],
    key: Sequence[str],
    join: Callable[[Row, Row], Row] = _newer,
) -> None:
    """Writes `merged` to the file."""
    path.write_text(json.dumps(merged(path, rows, machine, key, join), indent=1) + "\n")


def merged(
    path: Path,
    rows: Sequence[Row],
    machine: Mapping[str, Any],
    key: Sequence[str],
    join: Callable[[Row, Row], Row] = _newer,
) -> dict[str, Any]:
    """Returns the file's contents with these rows in the place of their older forms.

    Args:
        path: the file; it need not exist.
        rows: what was measured.
        machine: what it was measured on.
        key: the names of the values by which a row is known.
        join: what becomes of an (old, new) pair of one key; by default the new one.

    Raises:
        SystemExit: the file is of another device, or of other versions of a package.
    """
    if not path.exists():
        return {**machine, "rows": list(rows)}
    old = json.loads(path.read_text())
    # A package that only one of the runs has, as a GPU build of ONNX Runtime, is no other machine.
    versions = {**old["versions"], **machine["versions"]}
    if old["device"] != machine["device"] or {**versions, **old["versions"]} != versions:
        raise SystemExit(f"{path} is of {old['device']} {old['versions']}; this is {machine}: name another file")
    kept = {known_by(row, key): row for row in old["rows"]}
    for row in rows:
        name = known_by(row, key)
        kept[name] = join(kept[name], row) if name in kept else row
    return {**machine, "versions": versions, "rows": list(kept.values())}


def known_by(row: Row, key: Sequence[str]) -> str:
    """Returns the values by which a row is known, as one string."""
    return json.dumps([row[name] for name in key])


def reason(error: Exception) -> str:
    """Returns the kind of an error and the first line that it says."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}"[:LONGEST_REASON]


def machine(device: str, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Returns what the numbers are of: the device, and the versions of torch, Python and `packages`."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    versions |= {package: found for package in packages if (found := _version(package))}
    if device == "cuda":
        return {"device": torch.cuda.get_device_name(), "versions": {**versions, "cuda": torch.version.cuda}}
    capability, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return {"device": f"CPU, {capability}, {threads} threads", "versions": versions}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
