"""Records for the manifest how a command was called: its options and the Git revision, without this machine's paths."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fuseconv.bundle.invocation import Invocation
from fuseconv.untrusted.hub import reference

_NOT_RECORDED = ("output", "lock", "verbose", "quiet")
"""The parameters that do not affect the content of a bundle."""


def invocation() -> Invocation:
    """Returns the words of the current command line, including options from pyproject.toml, and the Git revision."""
    context = click.get_current_context()
    words = ["fuseconv", str(context.command.name)]
    for parameter in context.command.params:
        name = str(parameter.name)
        set_by = context.get_parameter_source(name)
        is_recorded = name in context.params and name not in _NOT_RECORDED  # --json has no value
        if is_recorded and set_by not in (None, ParameterSource.DEFAULT):
            words += _words(parameter, context.params[name])
    return Invocation(command=words, revision=_revision())


def _words(parameter: click.Parameter, value: Any) -> Iterator[str]:
    """Yields the command-line words that set a parameter to this value."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        yield (parameter.opts if value else parameter.secondary_opts or parameter.opts)[-1]
        return
    for one in value if isinstance(value, tuple) else (value,):
        if isinstance(parameter, click.Option):
            yield parameter.opts[-1]
        yield _without_folders(str(parameter.name), one)


def _without_folders(name: str, value: Any) -> str:
    """Converts an option's value to text. Keeps only the last part of a path: folders are specific to this machine."""
    if isinstance(value, Path):
        if (on_hub := reference(value)) is not None:
            return str(on_hub)
        return value.absolute().name
    if name == "factory":  # its value is folder/file.py:name
        file, colon, attribute = str(value).rpartition(":")
        return f"{Path(file).name}{colon}{attribute}"
    return str(value)


def _revision() -> str | None:
    """Returns the Git commit that is checked out in the working directory, or None outside a Git repository.

    Runs no Git hook or filter.
    """
    git = shutil.which("git")
    if git is None:
        return None
    found = subprocess.run([git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)  # noqa: S603
    return found.stdout.strip() if found.returncode == 0 else None
