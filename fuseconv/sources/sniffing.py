"""Finds out what form a model has, from its content alone."""

from __future__ import annotations

import struct
from pathlib import Path

from fuseconv.errors import FileError, RefusedError, UsageError
from fuseconv.sources.pickles import unsafe_globals
from fuseconv.sources.screening import ZIP_MAGIC, Member, member_root, read_member, screen_zip

_TAR_MAGIC, _TAR_AT = b"ustar", 257
_LEGACY_MAGIC_SIZE = 15
_ACCEPTED = (
    "give a torch.export archive (.pt2), a TorchScript archive, a torch.save file of a module or of a state dict, "
    "a .safetensors file, or a Hugging Face folder with config.json and .safetensors files"
)


def sniff(path: Path) -> str:
    """Returns the form: `pt2`, `torchscript`, `pickle`, `state-dict` or `huggingface`.

    A pickle that names only what tensors need is a `state-dict`; any other is a `pickle`. Nothing is run.

    Raises:
        FileError: it cannot be read.
        RefusedError: it is damaged or hostile, or native code.
        UsageError: it is sound, but not a model.
    """
    if path.is_dir():
        return _sniff_folder(path)
    if not path.is_file():
        raise FileError("this is neither a file nor a folder", where=str(path), fix=_ACCEPTED)
    try:
        with path.open("rb") as file:
            head = file.read(_TAR_AT + len(_TAR_MAGIC))
    except OSError as error:
        raise FileError(f"the model cannot be read: {error.strerror}", where=str(path)) from error
    if head.startswith((ZIP_MAGIC, b"PK\x05\x06")):
        return _sniff_zip(path, screen_zip(path))
    if head.startswith(b"\x80"):
        return "state-dict" if not legacy_globals(path) else "pickle"
    if head[_TAR_AT:] == _TAR_MAGIC:
        return "pickle"
    if is_safetensors(path, head):
        return "state-dict"
    if head.startswith((b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")):
        raise RefusedError("the file is native code, not a model", where=str(path), fix=_ACCEPTED)
    raise RefusedError(
        "the file is empty" if not head else "the file is no model that fuseconv can read, or it is damaged",
        where=str(path),
        fix=_ACCEPTED,
    )


def _sniff_folder(path: Path) -> str:
    if (path / "manifest.json").is_file():
        raise UsageError("this is a bundle, already converted", where=str(path), fix="fuseconv verify, or fuseconv run")
    if not (path / "config.json").is_file():
        raise UsageError("the folder has no config.json", where=str(path), fix=_ACCEPTED)
    return "huggingface"


def _sniff_zip(path: Path, members: tuple[Member, ...]) -> str:
    root = member_root(members, path)
    names = {member.name.removeprefix(root): member for member in members}
    if "archive_format" in names or any(name.startswith("models/") for name in names):
        return "pt2"
    if "constants.pkl" in names:
        return "torchscript"
    if "data.pkl" in names:
        return "pickle" if unsafe_globals(read_member(path, names["data.pkl"]), str(path)) else "state-dict"
    raise UsageError("the zip archive is not a model", where=str(path), fix=_ACCEPTED)


def pickle_names(path: Path) -> tuple[str, ...]:
    """Lists the unsafe globals of any pickle that `sniff` knows, for the message that refuses it."""
    with path.open("rb") as file:
        head = file.read(_TAR_AT + len(_TAR_MAGIC))
    if head.startswith(ZIP_MAGIC):
        members = screen_zip(path, checksums=False)
        name = member_root(members, path) + "data.pkl"
        return unsafe_globals(read_member(path, next(member for member in members if member.name == name)), str(path))
    return legacy_globals(path) if head.startswith(b"\x80") else ()


def legacy_globals(path: Path) -> tuple[str, ...]:
    """Lists the unsafe globals of a file that `torch.save` wrote before it wrote zips, or of a plain pickle.

    Such a file is five pickles in a row (magic number, protocol, system, object, storage keys), then the storages.

    Raises:
        RefusedError: it is not a pickle.
    """
    with path.open("rb") as file:
        first = unsafe_globals(file, str(path))
        if first or file.tell() != _LEGACY_MAGIC_SIZE:
            return first or ("a pickle that torch.save did not write",)
        return tuple(sorted({name for _ in range(4) for name in unsafe_globals(file, str(path))}))


def is_safetensors(path: Path, head: bytes) -> bool:
    """Says whether the file begins as a safetensors file: the length of a JSON header, then the header."""
    if len(head) < 10:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return head[8:9] == b"{" and 2 <= length <= min(100_000_000, path.stat().st_size - 8)
