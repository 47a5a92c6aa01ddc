"""Checks a zip file for damage and malicious contents before torch reads it.

The parser starts at the end-of-central-directory record, so that a million entries are rejected before anything parses
them. An archive with a prefix, comment or gap is rejected, so that every zip reader sees the same members.

Source: APPNOTE.TXT 6.3.10 (zip).
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fuseconv.errors import FileError, RefusedError
from fuseconv.untrusted.files import open_plain

ZIP_MAGIC = b"PK\x03\x04"

_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8
_PIECE = 1 << 20
_ENCRYPTED = 0x1
_UNICODE_PATH = 0x7075  # an extra field with a second name of the member, which some readers use, such as newer Python
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_DRIVE = re.compile(r"^[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True)
class Limits:
    """The limits on the size of a zip file and of its contents.

    Attributes:
        entries: the maximum number of members. A model of 100,000 tensors fits.
        directory: the maximum size of the central directory in bytes.
        ratio: the maximum number of unpacked bytes per byte of the file.
        floor: the number of unpacked bytes that is allowed regardless of `ratio`, because small files compress well.
    """

    entries: int = 131_072
    directory: int = 64 << 20
    ratio: int = 100
    floor: int = 64 << 20


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a zip file that passed `screen_zip`.

    Attributes:
        name: the path of the member within the zip file.
        size: the unpacked size in bytes.
        packed: the compressed size in bytes.
        method: the compression method: 0 (stored) or 8 (deflated).
        crc: the CRC-32 of the unpacked bytes.
        header: the offset of the local header in bytes.
        data: the offset of the packed data in bytes.
    """

    name: str
    size: int
    packed: int
    method: int
    crc: int
    header: int
    data: int = 0


def screen_zip(path: Path, limits: Limits | None = None, *, checksums: bool = True) -> tuple[Member, ...]:
    """Returns the members of a zip file after checking every name, size and offset.

    Names must be relative, without `..`, backslashes, drives, control characters, symbolic links or duplicates. Members
    must not overlap, their total unpacked size is limited, and they must match their checksums, which torch does not
    verify.

    Args:
        path: the path of the zip file.
        limits: the limits on the number and size of members. None for the defaults.
        checksums: whether to read every member and verify its checksum. Otherwise only the directory and the headers
            are read.

    Raises:
        RefusedError: the zip file is damaged or malicious.
        FileError: the file cannot be read.
    """
    limits = limits or Limits()
    try:
        with open_plain(path) as file:
            count, start, end, stop = _directory(file, path, limits)
            file.seek(start)
            members = tuple(_central(file.read(end - start), count, path))
            _check_names(members, path)
            total = sum(member.size for member in members)
            if total > max(limits.floor, limits.ratio * stop):
                raise _refused(
                    path, f"unpacks to {total} bytes, which is more than {limits.ratio} times its {stop} bytes"
                )
            members = _locate(file, members, start, path)
            for member in members if checksums else ():
                _check_bytes(file, member, path)
            return members
    except OSError as error:
        raise FileError(f"the file cannot be read: {error.strerror}", where=str(path)) from error


def read_member(path: Path, member: Member, limit: int = 256 << 20) -> bytes:
    """Returns the unpacked bytes of a screened member.

    Raises:
        RefusedError: the member is larger than `limit` bytes or damaged.
    """
    if member.size > limit:
        raise RefusedError(
            f"the archive's member has {member.size} bytes, but at most {limit} are read",
            where=f"{path}: {member.name}",
        )
    with open_plain(path) as file:
        return b"".join(_unpacked(file, member, path))


def member_pieces(path: Path, member: Member) -> Iterator[bytes]:
    """Yields the unpacked bytes of a screened member of any size, in pieces of at most 1 MiB.

    Raises:
        RefusedError: the member is damaged.
    """
    with open_plain(path) as file:
        yield from _unpacked(file, member, path)


def _check_bytes(file: BinaryIO, member: Member, path: Path) -> None:
    crc = size = 0
    for chunk in _unpacked(file, member, path):
        crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    if (crc, size) != (member.crc, member.size):
        raise _refused(path, f"is damaged: the checksum of {member.name!r} does not match")


def _unpacked(file: BinaryIO, member: Member, path: Path) -> Iterator[bytes]:
    """Yields the unpacked data of a member in pieces of at most 1 MiB.

    Stops one byte after the declared size, so that a caller can detect a member that is larger than declared.

    Raises:
        RefusedError: the data cannot be decompressed.
    """
    file.seek(member.data)
    if member.method == _STORED:
        yield from _pieces(file, member.packed)
        return
    unpack = zlib.decompressobj(-zlib.MAX_WBITS)
    room = member.size + 1
    for packed in _pieces(file, member.packed):
        piece = packed
        while room > 0:
            try:
                chunk = unpack.decompress(piece, min(room, _PIECE))
            except zlib.error as error:
                raise _refused(path, f"is damaged in {member.name!r}") from error
            yield chunk
            room -= len(chunk)
            piece = unpack.unconsumed_tail
            if not piece and len(chunk) < _PIECE:
                break


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (piece := file.read(min(size, _PIECE))):
        size -= len(piece)
        yield piece


def member_root(members: tuple[Member, ...], path: Path) -> str:
    """Returns the name of the one top-level folder that contains every member, with a trailing slash.

    Raises:
        RefusedError: the members have no common folder.
    """
    roots = {member.name.partition("/")[0] for member in members if "/" in member.name}
    if len(roots) != 1 or any("/" not in member.name for member in members):
        raise _refused(path, "does not keep its members in a single folder, as torch's archives do")
    return roots.pop() + "/"


def _directory(file: BinaryIO, path: Path, limits: Limits) -> tuple[int, int, int, int]:
    """Returns the number of members, and the offsets of the directory's start, the directory's end and the file's end.

    Raises:
        RefusedError: the end records are damaged or inconsistent, or exceed the limits.
    """
    stop = file.seek(0, io.SEEK_END)
    if stop < _END.size:
        raise _refused(path, "is too short for a zip")
    file.seek(stop - _END.size)
    signature, disk, first, here, count, size, start, comment = _END.unpack(file.read(_END.size))
    if signature != b"PK\x05\x06" or comment:
        raise _refused(path, "is truncated, or has a comment or other bytes after its directory")
    end = stop - _END.size
    short = (disk, first, here, count, size, start)
    locator = b""
    if end >= _END64_LOCATOR.size:
        file.seek(end - _END64_LOCATOR.size)
        locator = file.read(_END64_LOCATOR.size)
    if locator.startswith(b"PK\x06\x07"):
        end = _END64_LOCATOR.unpack(locator)[2]
        file.seek(min(end, stop))
        record = file.read(_END64.size)
        if len(record) < _END64.size or not record.startswith(b"PK\x06\x06"):
            raise _refused(path, "has a damaged zip64 record")
        _, length, _, _, disk, first, here, count, size, start = _END64.unpack(record)
        if end + 12 + length != stop - _END.size - _END64_LOCATOR.size:
            raise _refused(path, "has bytes between its directory and its end")
        long = (disk, first, here, count, size, start)
        full = (_FULL16, _FULL16, _FULL16, _FULL16, _FULL32, _FULL32)
        if any(a not in (b, limit) for a, b, limit in zip(short, long, full, strict=True)):
            raise _refused(path, "has an end record that contradicts its zip64 record")
    if disk or first or here != count:
        raise _refused(path, "is spread over several disks")
    if count > limits.entries or size > limits.directory:
        raise _refused(
            path, f"has {count} members in a directory of {size} bytes, but at most {limits.entries} members are read"
        )
    if start + size != end:
        raise _refused(path, "has bytes outside of its members and directory")
    return count, start, end, stop


def _central(directory: bytes, count: int, path: Path) -> Iterator[Member]:
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > len(directory):
            raise _refused(path, "has fewer members than it declares")
        fields = _CENTRAL.unpack_from(directory, at)
        signature, _, _, flags, method, _, _, crc, packed, size = fields[:10]
        name_length, extra_length, comment, disk, _, attributes, header = fields[10:]
        at += _CENTRAL.size
        raw = directory[at : at + name_length]
        extra = directory[at + name_length : at + name_length + extra_length]
        at += name_length + extra_length + comment
        if signature != b"PK\x01\x02" or len(raw) != name_length or at > len(directory):
            raise _refused(path, "has a damaged directory")
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _refused(path, f"has the member name {raw!r}, which is not UTF-8") from error
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED) or disk not in (0, _FULL16):
            raise _refused(path, f"has the member {name!r}, which is encrypted or compressed with an unknown method")
        if stat.S_ISLNK(attributes >> 16):
            raise _refused(path, f"has the member {name!r}, which is a symbolic link")
        if any(kind == _UNICODE_PATH for kind, _ in _fields(extra)):
            raise _refused(path, f"has the member {name!r}, which declares a second name")
        size, packed, header = _widen(extra, size, packed, header, path)
        if method == _STORED and size != packed:
            raise _refused(path, f"has the member {name!r}, which declares two different sizes")
        yield Member(name, size, packed, method, crc, header)
    if at != len(directory):
        raise _refused(path, "has more members than it declares")


def _widen(extra: bytes, size: int, packed: int, header: int, path: Path) -> tuple[int, int, int]:
    """Reads the values that do not fit in 32 bits from the zip64 extra field, in the order of APPNOTE 4.5.3."""
    values = [size, packed, header]
    wide = [index for index, value in enumerate(values) if value == _FULL32]
    for kind, data in _fields(extra) if wide else ():
        if kind == 1 and len(data) >= 8 * len(wide):
            for index, value in zip(wide, struct.unpack_from(f"<{len(wide)}Q", data), strict=True):
                values[index] = value
            return values[0], values[1], values[2]
    if wide:
        raise _refused(path, "has a member without its zip64 sizes")
    return size, packed, header


def _fields(extra: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the kind and the data of each complete extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        if at + 4 + length <= len(extra):
            yield kind, extra[at + 4 : at + 4 + length]
        at += 4 + length


def _check_names(members: tuple[Member, ...], path: Path) -> None:
    names: set[str] = set()
    for member in members:
        name = member.name
        parts = name.removesuffix("/").split("/")
        if (
            any(part in ("", ".", "..") for part in parts)
            or "\\" in name
            or _DRIVE.match(name)
            or _CONTROL.search(name)
            or len(name) > 1024
        ):
            raise _refused(path, f"has the member name {name[:80]!r}, which could leave its folder")
        if name.removesuffix("/") in names:
            raise _refused(path, f"has two members named {name!r}")
        names.add(name.removesuffix("/"))


def _locate(file: BinaryIO, members: tuple[Member, ...], start: int, path: Path) -> tuple[Member, ...]:
    """Checks local headers against the directory, rejects overlapping members, and sets each data offset."""
    placed: dict[str, Member] = {}
    free = 0
    for member in sorted(members, key=lambda member: member.header):
        file.seek(min(member.header, start))
        header = file.read(_LOCAL.size)
        if len(header) < _LOCAL.size or not header.startswith(ZIP_MAGIC):
            raise _refused(path, f"has no header for the member {member.name!r}")
        _, _, flags, method, _, _, _, _, _, name_length, extra_length = _LOCAL.unpack(header)
        name = file.read(name_length)
        data = member.header + _LOCAL.size + name_length + extra_length
        if name != member.name.encode() or method != member.method or flags & _ENCRYPTED:
            raise _refused(
                path, f"has the member {member.name!r}, whose header differs from its entry in the directory"
            )
        if member.header < free or data + member.packed > start:
            raise _refused(path, f"has the member {member.name!r}, which overlaps another member")
        free = data + member.packed
        placed[member.name] = replace(member, data=data)
    return tuple(placed[member.name] for member in members)


def _refused(path: Path, what: str) -> RefusedError:
    return RefusedError(
        f"the zip archive {what}", where=str(path), fix="copy or download the file again, or save the model again"
    )
