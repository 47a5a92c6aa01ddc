"""Defines the options `-q` and `-v`, so that both options are the same in every command that accepts them.

With `-q`, a command prints only errors. The option is for commands whose exit status is a sufficient result. `-v` is
for commands that otherwise show only one parity row per target.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from fuseconv.commands.outcome import Outcome
from fuseconv.commands.streams import QUIET

verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Show the parity of every case and output, instead of one row per target."
)


def quiet_option(command: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Adds `-q` to a command, which then prints no progress, no warnings, and no result as text."""

    @click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
    @functools.wraps(command)
    def told(*arguments: Any, quiet: bool, **options: Any) -> Outcome:
        click.get_current_context().meta[QUIET] = quiet
        return replace(command(*arguments, **options), quiet=quiet)

    return told
