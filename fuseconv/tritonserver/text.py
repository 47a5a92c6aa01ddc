"""Serializes messages in the text format of protocol buffers, as used in `config.pbtxt`. Does not import torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]
"""The fields of a message. A list is a repeated field."""


class Enum(str):
    """The name of an enum value, which is written without quotes."""

    __slots__ = ()


def spell(message: Message) -> str:
    """Serializes a message in the text format, with one field per line."""
    return "\n".join(_lines(message)) + "\n"


def _lines(message: Message) -> Iterator[str]:
    for name, value in message.items():
        each = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        for one in each:
            if isinstance(one, Mapping):
                yield f"{name} {{"
                yield from (f"  {line}" for line in _lines(one))
                yield "}"
            elif isinstance(one, Enum | int):
                yield f"{name}: {one}"
            else:
                yield f"{name}: {json.dumps(one, ensure_ascii=False)}"
