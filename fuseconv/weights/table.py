"""The weights table `weights.json` next to an artifact, which maps the artifact's weights to tensors of the bundle.

The table lists the names of the weights files, relative to the bundle's folder, and maps the name of each weight in the
artifact to the key of a tensor in one of these files. For a method of a bundle, the names are relative to the folder of
the whole bundle. Keys are unique in a bundle. An artifact without a weights table contains its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from fuseconv.bundle.files import WEIGHTS
from fuseconv.bundle.methods import weights_folder
from fuseconv.errors import FileError, RefusedError
from fuseconv.untrusted.files import read_plain
from fuseconv.weights.tensor_file import mapped

TABLE = "weights.json"

STORE = WEIGHTS

_AGAIN = "convert the model again, or copy the bundle again"


@dataclass(frozen=True)
class Entry:
    """Describes a weight as a view of a stored tensor.

    Attributes:
        key: the key of the stored tensor.
        shape: the shape of the weight if it is not contiguous. Empty if it is.
        stride: the strides of the weight, in elements, if it is not contiguous. None if it is.
        is_complex: whether the weight is complex. Then the last axis of the stored tensor holds the real and imaginary
            parts.
    """

    key: str
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] | None = None
    is_complex: bool = False

    def view(self, stored: torch.Tensor) -> torch.Tensor:
        """Returns the weight as a view of the stored tensor."""
        tensor = torch.view_as_complex(stored) if self.is_complex else stored
        return tensor if self.stride is None else tensor.as_strided(self.shape, self.stride)

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as a dict of JSON values, which `from_json` parses."""
        strided = {} if self.stride is None else {"shape": list(self.shape), "stride": list(self.stride)}
        return {"key": self.key, **strided, **({"complex": True} if self.is_complex else {})}

    @staticmethod
    def from_json(value: Any) -> Entry:
        """Parses the dict that `to_json` returned."""
        stride = tuple(value["stride"]) if "stride" in value else None
        return Entry(str(value["key"]), tuple(value.get("shape", ())), stride, bool(value.get("complex", False)))


@dataclass(frozen=True)
class Table:
    """The weights table of an artifact.

    Attributes:
        files: the paths of the weights files, relative to the bundle.
        tensors: maps the name of each weight in the artifact to its entry.
        program: the hash of the program in the artifact. Different weights may lead to a different program, because a
            rule may turn a weight into a number.
    """

    files: tuple[str, ...]
    tensors: Mapping[str, Entry]
    program: str = ""

    @property
    def keys(self) -> set[str]:
        """The keys of all stored tensors that the artifact uses."""
        return {entry.key for entry in self.tensors.values()}

    def to_json(self) -> str:
        """Returns the table as JSON text."""
        tensors = {name: one.to_json() for name, one in self.tensors.items()}
        value = {"files": list(self.files), "program": self.program, "tensors": tensors}
        return json.dumps(value, indent=1, sort_keys=True) + "\n"

    @staticmethod
    def of(artifact: Path) -> Table | None:
        """Returns the table next to an artifact, or None if the artifact contains its weights and so has no table.

        Raises:
            RefusedError: the table is damaged, or names a file outside the bundle.
        """
        path = artifact.with_name(TABLE)
        try:
            value = json.loads(read_plain(path, links=False))
            tensors = {name: Entry.from_json(one) for name, one in value["tensors"].items()}
            table = Table(tuple(value["files"]), tensors, str(value.get("program", "")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RefusedError(f"{TABLE} is damaged: {error}", where=str(path), fix=_AGAIN) from error
        for name in table.files:
            if not is_inside(name):
                raise RefusedError(f"{TABLE} names a file outside of the bundle: {name}", where=str(path), fix=_AGAIN)
        return table

    def read(self, bundle: Path, device: str) -> dict[str, torch.Tensor]:
        """Returns the weights by their names in the artifact, on the given device.

        On the CPU, the weights are memory-mapped, so that all processes that load the bundle share their memory. On
        another device, the artifacts that are loaded within one `sharing_weights` block share theirs.

        Raises:
            RefusedError: a file or a tensor is missing or damaged.
        """
        stored: dict[str, torch.Tensor] = {}
        try:
            for name in self.files:
                stored |= mapped(bundle / name)
            placed = {key: _placed(str(bundle), key, stored[key], device) for key in self.keys}
            return {name: entry.view(placed[entry.key]) for name, entry in self.tensors.items()}
        except OSError as error:
            what, where = f"{name} cannot be read: {error.strerror}", str(bundle / name)
            raise RefusedError(what, where=where, fix=_AGAIN) from error
        except (KeyError, RuntimeError, TypeError) as error:
            what = f"{TABLE} does not fit the weights: {error}"
            raise RefusedError(what, where=str(bundle), fix=_AGAIN) from error


_shared: ContextVar[dict[tuple[str, str, str], torch.Tensor] | None] = ContextVar("shared weights", default=None)


@contextmanager
def sharing_weights() -> Iterator[None]:
    """Lets the artifacts of a bundle that are loaded within the block share their weights on a device."""
    token = _shared.set({})
    try:
        yield
    finally:
        _shared.reset(token)


def _placed(bundle: str, key: str, stored: torch.Tensor, device: str) -> torch.Tensor:
    """Returns a stored tensor on a device: a copy of its own, or a tensor that shares the memory of an earlier copy."""
    shared = _shared.get()
    if shared is None or device == "cpu":
        return stored.to(device)
    known = shared.get((bundle, key, device))
    if known is None:
        known = shared[bundle, key, device] = stored.to(device)
    return known.detach()  # whoever releases a tensor empties this one, and not the others


def set_table(artifact: Path, table: Table | None) -> None:
    """Writes the table next to an artifact; removes an existing table if `table` is None.

    Raises:
        FileError: the file cannot be written.
    """
    path = artifact.with_name(TABLE)
    try:
        if table is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(table.to_json(), encoding="utf-8")
    except OSError as error:
        raise FileError.unwritable("the table of weights cannot be written", error, str(path)) from error


def is_inside(name: object) -> bool:
    """Returns whether `name` is a relative path without `..`, so that it cannot leave the folder it is relative to."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts


def weights_of_artifact(artifact: Path, device: str) -> dict[str, torch.Tensor] | None:
    """Returns the weights of an artifact by name, or None if the artifact contains its weights.

    The artifact must be in a subfolder of its bundle.

    Raises the errors of `Table.of` and `Table.read`.
    """
    table = Table.of(artifact)
    return None if table is None else table.read(weights_folder(artifact.parents[1]), device)
