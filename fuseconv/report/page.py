"""Writes the report by inserting its data as JSON into the built HTML page. Text from a bundle never becomes HTML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from fuseconv.bundle.whole_file import write_whole
from fuseconv.errors import FileError, UnsupportedError
from fuseconv.report.described import Described

BUILT = Path(__file__).parents[1] / "lib" / "report.html"
"""The page without data. npm builds it from `frontend/` when fuseconv is built."""

_EMPTY = b'<script type="application/json" id="data">null</script>'


@dataclass(frozen=True)
class Report:
    """The data that the page draws.

    Attributes:
        fuseconv: the version of fuseconv that wrote the report.
        bundles: the bundles or methods, which are shown side by side.
    """

    fuseconv: str
    bundles: tuple[Described, ...]


_REPORT = TypeAdapter(Report)


def check_built() -> None:
    """Checks that the page was built with fuseconv.

    Raises:
        UnsupportedError: the page was not built.
    """
    if not BUILT.is_file():
        raise UnsupportedError(
            "the page of the report was not built, because npm was not found when fuseconv was built",
            where=str(BUILT),
            fix="install npm with Node.js 18 or newer, and run `make build` again in the repository of fuseconv",
        )


def render(report: Report) -> bytes:
    """Returns the content of the HTML file, encoded in UTF-8.

    Raises:
        UnsupportedError: the page was not built.
    """
    check_built()
    before, after = BUILT.read_bytes().split(_EMPTY)
    # In JSON, `<` occurs only in strings. With every `<` escaped, no string can close the script element.
    data = _REPORT.dump_json(report).replace(b"<", rb"\u003c")
    return b"".join((before, _EMPTY.replace(b"null", data), after))


def write(report: Report, path: Path) -> int:
    """Writes the HTML file, and returns its size in bytes.

    Raises:
        UnsupportedError: the page was not built.
        FileError: the file cannot be written.
    """
    text = render(report)
    try:
        write_whole(path, text)
    except OSError as error:
        raise FileError.unwritable("the report cannot be written", error, str(path)) from error
    return len(text)
