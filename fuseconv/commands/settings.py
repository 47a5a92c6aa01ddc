"""Reads defaults for the options of commands from the table `[tool.fuseconv]` in pyproject.toml.

The file is the nearest pyproject.toml with this table, from the working directory upward. The keys are the options of
`fuseconv convert` without leading dashes. The command line takes precedence over the file. Paths are relative to the
file.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fuseconv.commands.outcome import Outcome
from fuseconv.errors import FileError, UsageError
from fuseconv.untrusted.files import is_plain, leads_somewhere, read_plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

FILE = "pyproject.toml"

NOT_SET = {
    "trust": "the user who runs the command decides whose code to trust, not a file that came with the model",
    "json": "it controls how a single run is printed",
    "quiet": "it controls how a single run is printed",
    "verbose": "it controls how a single run is printed",
    "dry-run": "it applies to a single run",
    "output": "it applies to a single run",
    "lock": "it applies to a single run",
    "frozen": "it applies to a single run",
}
"""The options that cannot be set in the file, with the reasons."""


@dataclass(frozen=True)
class Settings:
    """The settings of a project.

    Attributes:
        path: the path of pyproject.toml. None if no file contains the table `[tool.fuseconv]`.
        values: the content of the table. Empty if there is no table.
    """

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The project folder: the folder of the file, or the working directory if there is no file."""
        return self.path.parent if self.path is not None else Path()


def read_settings(start: Path) -> Settings:
    """Returns the settings in the nearest pyproject.toml, from the folder `start` upward, that contains the table.

    Raises:
        UsageError: a file is not valid TOML, or `tool.fuseconv` is not a table.
    """
    for folder in (start, *start.parents):
        path = folder / FILE
        if not is_plain(path):
            continue
        try:
            found = tomllib.loads(read_plain(path).decode("utf-8")).get("tool", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
            raise UsageError(f"invalid TOML: {problem}", where=str(path), fix="correct the file") from None
        if isinstance(found, dict) and "fuseconv" in found:
            if not isinstance(found["fuseconv"], dict):
                raise UsageError("tool.fuseconv must be a table", where=str(path), fix="write [tool.fuseconv]")
            return Settings(path, found["fuseconv"])
    return Settings()


def _working_directory() -> Path:
    """Returns the working directory. Raises FileError if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        what = "the working directory no longer exists"
        raise FileError(what, where="the working directory", fix="cd to an existing directory") from None


class Configured(click.Command):
    """A command whose options may be set in pyproject.toml, and whose result reports where each value came from."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Reads the settings and passes them to click as the default values of the options."""
        settings = read_settings(_working_directory())
        _check(settings, _convert(parent) or self)
        values = {
            option.name: _value(settings, key, option)
            for key, option in _options(self.params).items()
            if key in settings.values
        }
        return super().make_context(info_name, args, parent, **{**extra, "default_map": values, "obj": settings})

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, and adds to its result the value of each option and where the value came from."""
        outcome, settings = super().invoke(ctx), ctx.find_object(Settings)
        assert isinstance(outcome, Outcome)
        assert settings is not None
        file = str(settings.path)
        names = {ParameterSource.COMMANDLINE: "command line", ParameterSource.DEFAULT_MAP: file}
        rows = {
            key: {"value": _plain(ctx.params[name]), "from": names.get(source, "default")}
            for key, option in _options(self.params).items()
            if (name := str(option.name)) in ctx.params and (source := ctx.get_parameter_source(name)) is not None
        }

        def render(console: Console) -> None:
            outcome.render(console)
            if any(row["from"] == file for row in rows.values()):
                console.print("\nsettings", style="bold")
                for key, row in rows.items():
                    if row["from"] != "default":
                        line = f"    {key} = {json.dumps(row['value'])}   ({row['from']})"
                        console.print(line, highlight=False, markup=False)

        return replace(outcome, result={**outcome.result, "settings": rows}, render=render)


def _convert(parent: click.Context | None) -> click.Command | None:
    """Returns the command `fuseconv convert`, whose options are the valid keys, or None outside the command group.

    Other commands ignore the keys that are not among their own options.
    """
    root = parent.find_root() if parent is not None else None
    return root.command.get_command(root, "convert") if root and isinstance(root.command, click.Group) else None


def _options(parameters: Sequence[click.Parameter]) -> dict[str, click.Parameter]:
    """Returns the parameters of a command by their keys in pyproject.toml: the long option name, or the argument name.

    Leaves out `help` and the options in `NOT_SET`.
    """
    keys: dict[str, click.Parameter] = {}
    for parameter in parameters:
        long = next((flag[2:] for flag in parameter.opts if flag.startswith("--")), parameter.name or "")
        if long not in (*NOT_SET, "help"):
            keys[long] = parameter
    return keys


def _check(settings: Settings, command: click.Command) -> None:
    """Checks that every key is an option of `command` with a valid value.

    Raises:
        UsageError: a key or value is invalid.
    """
    options = {key: option for key, option in _options(command.params).items() if isinstance(option, click.Option)}
    for key, value in settings.values.items():
        where = f"{settings.path} ([tool.fuseconv] {key})"
        if key in NOT_SET:
            raise UsageError(
                f"{key} cannot be set in a file: {NOT_SET[key]}", where=where, fix=f"give --{key} on the command line"
            )
        if key not in options:
            near = difflib.get_close_matches(key, options, 1, cutoff=0.5)
            fix = f"did you mean {near[0]}?" if near else f"use one of {', '.join(options)}"
            raise UsageError(f"unknown setting {key}", where=where, fix=fix)
        kind = "a list of strings" if options[key].multiple else "true or false" if options[key].is_flag else "a string"
        if not _is_of(kind, value):
            raise UsageError(
                f"the setting {key} must be {kind}, but it is {value!r}", where=where, fix=f"write {key} as {kind}"
            )


def _is_of(kind: str, value: Any) -> bool:
    """Returns whether a value is of the kind that `_check` requires: a list of strings, true or false, or a string."""
    if kind == "a list of strings":
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    return isinstance(value, bool if kind == "true or false" else str)


def _value(settings: Settings, key: str, option: click.Parameter) -> Any:
    """Returns the value of a key as click's default value for an option. Resolves paths relative to the file."""
    value = settings.values[key]
    if key == "rules" and not leads_somewhere(settings.root / value):
        return value  # a file that comes with fuseconv, such as rules/default.json
    is_path = getattr(option.type, "func", None) is Path
    is_file_of_model = key == "model" and value.partition(":")[0].endswith(".py")
    return str(settings.root / value) if is_path or is_file_of_model else value


def _plain(value: Any) -> Any:
    """Converts the value of an option to a plain JSON value."""
    if isinstance(value, tuple):
        return [str(item) for item in value]
    return str(value) if isinstance(value, Path) else value
