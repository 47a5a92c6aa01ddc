"""Generates the API page of the ops from their help texts."""

from __future__ import annotations

import re
import textwrap

from fuseconv.ops import OPS, Op

HEAD = """# fuseconv.ops

Each op is called as `fuseconv.ops.NAME(...)` and appears in exported graphs as `torch.ops.fuseconv.NAME.default`. It
works under `torch.compile`, `torch.export` and `torch.autocast`, and is differentiable. The text below is that of
`help(fuseconv.ops.NAME)`. Each error message is that of one call in the tests, and a test runs each example.
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
    """Returns a paragraph, a titled section as a list, or examples as code."""
    title, colon, rest = text.partition(":\n    ")
    if not colon or "\n" in title:
        return _escaped(text)
    if title == "Examples":
        return f"**{title}**\n\n```pycon\n{textwrap.dedent(f'    {rest}')}\n```"
    items = re.split(r"\n(?! )", textwrap.dedent(f"    {rest}"))
    words = (" ".join(item.split()) for item in items)
    return "\n".join([f"**{title}**", "", *(f"- {_escaped(item)}" for item in words)])


def _escaped(text: str) -> str:
    """Returns text with Markdown characters escaped, except in backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]\\])", r"\\\1", part) for part in parts)
