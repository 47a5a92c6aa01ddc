"""Detects the container format of a file from its first bytes, without parsing or running the file."""

from __future__ import annotations

import struct
from typing import Literal

Container = Literal["safetensors", "zip", "pickle", "tar", "native", ""]

HEAD = 262
"""The number of bytes at the start of a file from which the format is detected."""

LARGEST_HEADER = 100_000_000
"""The maximum size in bytes of the header of a safetensors file."""

_TAR_MAGIC, _TAR_AT = b"ustar", 257
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_PROTOCOLS = range(6)


def container_of(head: bytes, size: int) -> Container:
    """Returns the container format of a file, or "" if the format is unknown.

    "native" stands for executables and shared libraries. Safetensors is checked first, because the first byte of a
    safetensors file is the low byte of a length and may equal the first byte of any other format. The first eight bytes
    of another format are a valid length that is followed by `{` only if the file was crafted.

    Args:
        head: the first `HEAD` bytes of the file, or fewer if it is shorter.
        size: the size of the file in bytes.
    """
    if is_safetensors(head, size):
        return "safetensors"
    if head.startswith(_ZIP):
        return "zip"
    if head[:1] == b"\x80" and head[1:2] != b"" and head[1] in _PROTOCOLS:
        return "pickle"
    if head[_TAR_AT : _TAR_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return "tar"
    return "native" if head.startswith(_NATIVE) else ""


def is_safetensors(head: bytes, size: int) -> bool:
    """Returns whether a file starts like safetensors: with the length of a JSON header in 8 bytes, and then `{`.

    Args:
        head: the first `HEAD` bytes of the file, or fewer if it is shorter.
        size: the size of the file in bytes.
    """
    if len(head) < 9:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return head[8:9] == b"{" and 2 <= length <= min(LARGEST_HEADER, size - 8)
