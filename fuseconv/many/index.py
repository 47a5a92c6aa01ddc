"""Writes an HTML page with the results: one row per model, and the errors of failed models. Does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from fuseconv.errors import printable
from fuseconv.many.row import Row

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Conversions</title>
<style>
body {{ font: 14px/1.4 system-ui, sans-serif; margin: 2em; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; vertical-align: top; padding: .3em 1em; border-bottom: 1px solid #ccc; }}
.failed {{ color: #a00; }}
pre {{ margin: 0; white-space: pre-wrap; }}
</style>
<h1>{title}</h1>
<table>
<tr><th>model</th><th>status</th><th>targets</th><th>fusions</th><th>max error</th><th>seconds</th><th>error</th></tr>
{rows}
</table>
</html>
"""


def write_index(folder: Path, rows: Sequence[Row]) -> Path:
    """Writes `index.html` into the folder of the bundles, and returns its path.

    Raises:
        OSError: the page cannot be written.
    """
    failed = sum(row.status == "failed" for row in rows)
    page = _PAGE.format(title=f"{len(rows)} models, {failed} failed", rows="\n".join(map(_row, rows)))
    path = folder / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _row(row: Row) -> str:
    """Returns the HTML table row of a model."""
    name = escape(row.name)
    shown = f'<a href="{name}.json">{name}</a>'
    error = "" if row.max_abs is None else f"{row.max_abs:.1e}"
    cells = [
        shown,
        row.status,
        escape(", ".join(row.targets)),
        str(row.fusions) if row.targets else "",
        error,
        f"{row.seconds:.1f}",
        f"<pre>{escape(printable(row.error))}</pre>" if row.error else "",
    ]
    return f'<tr class="{row.status}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
