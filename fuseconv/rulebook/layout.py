"""The layout of rule files: each op of a pattern is on its own line; conditions and examples share lines.

`fuseconv rules format` applies this layout. The meaning of a file does not depend on its layout.
"""

from __future__ import annotations

import json
from typing import Any

WIDTH = 120
"""The maximum length of a line in columns. A single string that is longer is not broken."""

_FILLED = ("where", "context", "hit", "miss", "program")
"""The fields whose conditions or program lines are packed several to a line."""


def laid_out(value: Any) -> str:
    """Returns the formatted text of a rule file.

    Args:
        value: the contents of the file as plain Python values.
    """
    return _text(value, 0, 0, filled=False) + "\n"


def _text(value: Any, indent: int, lead: int, *, filled: bool) -> str:
    """Returns the formatted text of a value that starts at column `lead` of a line indented by `indent` columns."""
    if not isinstance(value, dict | list) or not value:
        return _scalar(value)
    if _is_short(value) and len(one := _on_one_line(value)) + indent + lead < WIDTH:
        return one
    inside, end = " " * (indent + 2), " " * indent
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(key)}: {_text(inner, indent + 2, len(json.dumps(key)) + 2, filled=filled or key in _FILLED)}"
            for key, inner in value.items()
        ]
        return "{\n" + ",\n".join(inside + part for part in parts) + f"\n{end}}}"
    if len(value) == 1:
        return f"[{_text(value[0], indent, lead + 1, filled=filled)}]"
    if filled and all(isinstance(item, str) for item in value):
        return "[\n" + "\n".join(inside + line for line in _filled(value, WIDTH - indent - 2)) + f"\n{end}]"
    return "[\n" + ",\n".join(inside + _text(item, indent + 2, 0, filled=filled) for item in value) + f"\n{end}]"


def _filled(items: list[str], width: int) -> list[str]:
    lines: list[str] = []
    words = [_scalar(item) + "," for item in items]
    words[-1] = words[-1][:-1]
    for word in words:
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def _is_short(value: Any) -> bool:
    """Returns whether a value may be written on a single line.

    Such values are scalars, lists of scalars, lists with a single short item, lists of objects with one short member
    each, and objects whose members are short and are not objects.
    """
    if isinstance(value, dict):
        return all(not isinstance(inner, dict) and _is_short(inner) for inner in value.values())
    if not isinstance(value, list) or not any(isinstance(item, dict | list) for item in value):
        return True
    alone = len(value) == 1 or all(isinstance(item, dict) and len(item) == 1 for item in value)
    return alone and all(map(_is_short, value))


def _on_one_line(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {_on_one_line(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_on_one_line, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and float(short := f"{value:g}".replace("e+", "e")) == value:
        return short
    return json.dumps(value, ensure_ascii=False)
