"""Defines a render hook for rich that escapes the terminal control characters in all printed text."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment

from fuseconv.errors import printable


class Escaping(RenderHook):
    """A render hook that escapes control characters. `Console.push_render_hook` installs it."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Returns wrappers of the renderables whose output has its control characters escaped."""
        return [_Escaped(one) for one in renderables]


class _Escaped:
    """Renders another renderable, and escapes the control characters in its text but not rich's own control codes."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else printable(text), style, control)
