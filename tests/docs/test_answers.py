"""docs/answers.md: the sources still raise each error that it quotes, and its table has all exit statuses."""

from __future__ import annotations

import re
from functools import cache

import pytest
from support import ROOT

from fuseconv import errors

PAGE = (ROOT / "docs" / "answers.md").read_text()
QUOTED = re.compile(r"^(?:error|fuseconv\.errors\.\w+): (.+(?:\n  [+-] .+)*)\n  at: .+\n  fix: (.+)\n```", re.MULTILINE)
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
BETWEEN = re.compile(r'"\s*\n\s*f?"')
LETTERS = {"what": 11, "fix": 5}
"""A text with fewer constant characters would match anything."""


@cache
def templates(part: str) -> frozenset[re.Pattern[str]]:
    """Returns a pattern per text of the sources, with anything in place of each `{value}`."""
    found = set()
    for path in (ROOT / "fuseconv").rglob("*.py"):
        source = path.read_text()
        for text in LITERAL.findall(BETWEEN.sub("", source)):
            constant = re.split(r"\{(?:[^{}]|\{[^{}]*\})*\}", text.replace('\\"', '"'))
            if sum(map(len, constant)) >= LETTERS[part]:
                found.add(re.compile(".*".join(map(re.escape, constant))))
    return frozenset(found)


@pytest.mark.parametrize(("what", "fix"), QUOTED.findall(PAGE))
def test_the_sources_raise_it(what: str, fix: str) -> None:
    for part, line in (("what", what.partition("\n")[0]), ("fix", fix)):
        spans = (match.span() for one in templates(part) if (match := one.search(line)))
        assert any(end - start > len(line) / 2 for start, end in spans), f"no error says: {line}"


def test_every_error_of_the_page_is_read() -> None:
    assert len(QUOTED.findall(PAGE)) == PAGE.count("\n  fix: ") >= 20


def test_every_exit_status_is_in_the_table() -> None:
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.FuseconvError)]
    listed = {
        (int(status), code)
        for status, codes in re.findall(r"^\| (\d) \| (`.+?`) \|", PAGE, re.MULTILINE)
        for code in re.findall(r"`(\w+)`", codes)
    }
    assert {(kind.exit_status, kind.code) for kind in kinds} == listed
