"""Text from a file or a path, made fit for a terminal: what would move its cursor or colour it is spelled out."""

from __future__ import annotations

import re

_ACTIVE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1: escape sequences begin with one of these
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of what follows
    "\u2028\u2029"  # separators that some terminals take for newlines
    "\ud800-\udfff"  # bytes of a name that are not UTF-8
    "]"
)


def printable(text: str) -> str:
    r"""Returns text with every character that a terminal would obey written as its escape, `\x1b` for one.

    Newlines and tabs stay.
    """
    return _ACTIVE.sub(lambda found: _escape(found[0]), text)


def on_one_line(text: str) -> str:
    r"""Returns printable text without newlines: a path or a name may not look like a line of our own."""
    return printable(text).replace("\n", r"\n")


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that `os.fsdecode` could not read
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
