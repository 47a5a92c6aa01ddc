"""Detects the format of a model from its content."""

from __future__ import annotations

import os
from pathlib import Path

from fuseconv.bundle.files import MANIFEST
from fuseconv.errors import FileError, RefusedError, UsageError
from fuseconv.sources import foreign
from fuseconv.sources.pickles import checkpoint_key, unsafe_globals
from fuseconv.sources.screening import Member, member_root, read_member, screen_zip
from fuseconv.untrusted.containers import HEAD, Container, container_of
from fuseconv.untrusted.files import is_plain, open_plain
from fuseconv.weights.table import TABLE

_LEGACY_MAGIC_SIZE = 15
_ACCEPTED = (
    "give a torch.export archive (.pt2), a TorchScript archive, a torch.save file of a module or of a state dict, "
    "a .safetensors file, or a Hugging Face folder with config.json and .safetensors files"
)


def sniff(path: Path) -> str:
    """Returns the format of a model: `pt2`, `torchscript`, `pickle`, `state-dict` or `huggingface`.

    A pickle that references only the globals of tensors is a `state-dict`; any other is a `pickle`. No code is run.

    Raises:
        FileError: the file cannot be read.
        RefusedError: the file is damaged, malicious or native code.
        UnsupportedError: the file is a model of another tool.
        UsageError: the file is valid, but not a model.
    """
    if path.is_dir():
        return _sniff_folder(path)
    kind, size = container(path)
    match kind:
        case "zip":
            if is_plain(path.with_name(TABLE)) and is_plain(path.absolute().parents[1] / MANIFEST):
                raise UsageError(
                    "this is an artifact of a bundle, which is already converted and does not contain its weights",
                    where=str(path),
                    fix="use `fuseconv verify` or `fuseconv run` with the bundle; `fuseconv materialize` writes the "
                    "artifact with its weights",
                )
            return _sniff_zip(path, screen_zip(path))
        case "pickle":
            return "state-dict" if not legacy_globals(path) else "pickle"
        case "tar":
            return "pickle"
        case "safetensors":
            return "state-dict"
        case "native":
            raise RefusedError("the file contains native code, not a model", where=str(path), fix=_ACCEPTED)
    if (form := foreign.foreign_file(_start(path)[0])) is not None:
        raise form.error(path)
    if path.suffix == ".py":
        raise foreign.PYTHON.error(path)
    raise RefusedError(
        "the file is not a model that fuseconv can read, or it is damaged" if size else "the file is empty",
        where=str(path),
        fix=_ACCEPTED,
    )


def container(path: Path) -> tuple[Container, int]:
    """Returns the container format of a file, and the size of the file in bytes.

    Raises:
        FileError: the path is not a regular file, or the file cannot be read.
    """
    head, size = _start(path)
    return container_of(head[:HEAD], size), size


def _start(path: Path) -> tuple[bytes, int]:
    """Returns the first `foreign.HEAD` bytes of a file, and the size of the file in bytes."""
    try:
        with open_plain(path) as file:
            return file.read(foreign.HEAD), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise FileError(f"the model cannot be read: {error.strerror}", where=str(path), fix=_ACCEPTED) from error


def _sniff_folder(path: Path) -> str:
    if is_plain(path / "manifest.json"):
        raise UsageError(
            "this is a bundle, which is already converted",
            where=str(path),
            fix="use `fuseconv verify` or `fuseconv run`",
        )
    if (form := foreign.foreign_folder(path)) is not None:
        raise form.error(path)
    if not is_plain(path / "config.json"):
        raise UsageError("the folder has no config.json", where=str(path), fix=_ACCEPTED)
    return "huggingface"


def _sniff_zip(path: Path, members: tuple[Member, ...]) -> str:
    if (form := foreign.foreign_zip([member.name for member in members])) is not None:
        raise form.error(path)
    root = member_root(members, path)
    names = {member.name.removeprefix(root): member for member in members}
    if "archive_format" in names or any(name.startswith("models/") for name in names):
        return "pt2"
    if "constants.pkl" in names:
        return "torchscript"
    if "data.pkl" in names:
        return "pickle" if unsafe_globals(read_member(path, names["data.pkl"]), str(path)) else "state-dict"
    raise UsageError("the zip archive does not contain a model", where=str(path), fix=_ACCEPTED)


def pickle_names(path: Path) -> tuple[str, ...]:
    """Returns the unsafe globals of a pickle in a zip file, or of a bare pickle, for an error; else an empty tuple."""
    kind, _ = container(path)
    if kind == "zip":
        return unsafe_globals(_zipped_pickle(path), str(path))
    return legacy_globals(path) if kind == "pickle" else ()


def key_of_checkpoint(path: Path) -> str:
    """Returns the key under which a pickle probably contains a state dict, or "" if none is found."""
    return checkpoint_key(_zipped_pickle(path)) if container(path)[0] == "zip" else ""


def _zipped_pickle(path: Path) -> bytes:
    members = screen_zip(path, checksums=False)
    name = member_root(members, path) + "data.pkl"
    return read_member(path, next(member for member in members if member.name == name))


def legacy_globals(path: Path) -> tuple[str, ...]:
    """Returns the unsafe globals of a plain pickle, or of a file in torch's legacy format, which is not a zip file.

    A file in this old format consists of five consecutive pickles (magic number, protocol, system, object, storage
    keys) and then the storages.

    Raises:
        RefusedError: the file is not a pickle.
    """
    with open_plain(path) as file:
        first = unsafe_globals(file, str(path))
        if first or file.tell() != _LEGACY_MAGIC_SIZE:
            return first or ("no class, but torch.save did not write it",)
        return tuple(sorted({name for _ in range(4) for name in unsafe_globals(file, str(path))}))
