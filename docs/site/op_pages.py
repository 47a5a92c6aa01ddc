"""The API page of the ops, made of what `help` says of each."""

from __future__ import annotations

import re
import textwrap

from fuseconv.ops import OPS, Op

HEAD = """# fuseconv.ops

Each op is called as `fuseconv.ops.NAME(...)`, and stands in exported graphs as `torch.ops.fuseconv.NAME.default`. It
works under `torch.compile`, `torch.export` and `torch.autocast`, and has a gradient. `help(fuseconv.ops.NAME)` prints
what is below. The errors are those of one call each that the tests make.
"""


def page() -> str:
    """Returns the Markdown of all ops."""
    return "\n".join([HEAD, *(_section(op) for op in OPS)])


def _section(op: Op) -> str:
    call, *blocks = (op.__doc__ or "").split("\n\n")
    return (
        "\n\n".join([f"## {op.name} {{ #fuseconv.ops.{op.name} }}", f"```python\n{call}\n```", *map(_block, blocks)])
        + "\n"
    )


def _block(text: str) -> str:
    """Returns a paragraph, or a titled section as a list."""
    title, colon, rest = text.partition(":\n    ")
    if not colon or "\n" in title:
        return _escaped(text)
    items = re.split(r"\n(?! )", textwrap.dedent(f"    {rest}"))
    words = (" ".join(item.split()) for item in items)
    return "\n".join([f"**{title}**", "", *(f"- {_escaped(item)}" for item in words)])


def _escaped(text: str) -> str:
    """Returns text whose formulas Markdown leaves alone; what is in backticks stays."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]\\])", r"\\\1", part) for part in parts)
