"""Defines the style of tables, and cells that several tables use."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

_UNBOUNDED = 10_000
"""The output width in columns. It is wider than any table."""


class Table(RichTable):
    """A borderless table whose cells are printed literally, because square brackets are shapes and not markup.

    A table of text is wrapped at the width of the terminal. A table with number columns prints one line per row.
    """

    def __init__(self, *columns: str, numbers: Collection[str] = ()) -> None:
        """Creates a table with these columns. The columns named in `numbers` are aligned to the right."""
        super().__init__(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        self.whole = bool(numbers)
        for column in columns:
            self.add_column(column, justify="right" if column in numbers else "left", overflow="fold")

    def add(self, *cells: str | Text) -> None:
        """Adds a row."""
        self.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders the table. A table with number columns may be wider than the available width."""
        if self.whole:
            needed = Measurement.get(console, options.update(width=_UNBOUNDED), self).maximum
            options = options.update(width=max(needed, options.max_width))
        return super().__rich_console__(console, options)


def mark(ok: bool, otherwise: str = "FAIL") -> Text:
    """Returns the text `ok` in green if `ok` is True, else the text `otherwise` in red."""
    return Text("ok", style="green") if ok else Text(otherwise, style="bold red")


def size_text(size: int) -> str:
    """Formats a size in bytes with a decimal unit, such as `87.4 MB`."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
