"""What kind of container a file is, from its first bytes. Nothing is parsed, nothing is run."""

from __future__ import annotations

import struct
from typing import Literal

Container = Literal["safetensors", "zip", "pickle", "tar", "native", ""]

HEAD = 262
"""How many bytes of a file are needed."""

LARGEST_HEADER = 100_000_000
"""The longest header that safetensors itself reads, in bytes."""

_TAR_MAGIC, _TAR_AT = b"ustar", 257
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_NATIVE = (b"\x7fELF", b"MZ", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_PROTOCOLS = range(6)


def container_of(head: bytes, size: int) -> Container:
    """Returns the kind of container, "" for none of these.

    safetensors come first: their first byte is the low byte of a length and may be any, that of a pickle too. None of
    the others can have a ninth byte of `{` behind eight that are a length within the file, unless it is made to.

    Args:
        head: the first bytes of the file, `HEAD` of them where there are so many.
        size: bytes in the file.
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
    """Says whether a file begins as safetensors do: the length of a JSON header as 8 little-endian bytes, then `{`."""
    if len(head) < 9:
        return False
    (length,) = struct.unpack_from("<Q", head)
    return head[8:9] == b"{" and 2 <= length <= min(LARGEST_HEADER, size - 8)
