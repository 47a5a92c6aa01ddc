"""The commands that pages show have names and options that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from support import ROOT

from fuseconv import cli

BLOCK = re.compile(r"^( *)```.*?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PAGES = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
SHOWN = {str(page.relative_to(ROOT)): page.read_text() for page in sorted(PAGES) if "fuseconv " in page.read_text()}


def commands(text: str) -> Iterator[list[str]]:
    """Yields the words after `fuseconv` of each command in the blocks of a page, up to a pipe or a comment."""
    for _, block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*fuseconv ([a-z].*)", line):
                lexer = shlex.shlex(found[1], posix=True, punctuation_chars="|&;<>")
                lexer.whitespace_split = True
                words = list(lexer)
                yield words[: next((at for at, word in enumerate(words) if word[0] in "|&;<>"), None)]


def test_commands_are_found() -> None:
    assert sum(1 for text in SHOWN.values() for _ in commands(text)) > 50


@pytest.mark.parametrize("page", SHOWN)
def test_names_and_options_exist(page: str) -> None:
    for words in commands(SHOWN[page]):
        context, rest = click.Context(cli.cli), words
        command: click.Command = cli.cli
        while isinstance(command, click.Group):
            found = command.get_command(context, rest[0])
            assert found is not None, f"there is no fuseconv {' '.join(words)}"
            command, rest = found, rest[1:]
        known = {name for one in command.get_params(context) for name in (*one.opts, *one.secondary_opts)}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)}
        assert used <= known, f"fuseconv {' '.join(words)}"
