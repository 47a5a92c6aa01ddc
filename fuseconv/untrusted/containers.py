"""Detects the container format of a file from the first bytes. Nothing is parsed or run."""

from __future__ import annotations

import struct
from typing import Literal

Container = Literal["safetensors", "zip", "pickle", "tar", "native", ""]

HEAD = 262
"""The number of bytes at the start of a file that detection needs."""

LARGEST_HEADER = 100_000_000
"""The maximum header size of safetensors in bytes."""

_TAR_MAGIC, _TAR_AT = b"ustar", 257
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_PROTOCOLS = range(6)


def container_of(head: bytes, size: int) -> Container:
    """Returns the container format, or "" if the file has none of these formats.

    The safetensors format is checked first: its first byte is the low byte of a length and may have any value, even
    the value of a pickle's first byte. Files in other formats do not contain `{` as the ninth byte after a valid
    length, unless they are crafted.

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
    """Returns whether a file starts like safetensors: 8 bytes give the length of a JSON header, and `{` follows."""
    if len(head) < 9:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return head[8:9] == b"{" and 2 <= length <= min(LARGEST_HEADER, size - 8)
