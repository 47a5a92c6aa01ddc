"""Suggests the commands that a user would run next, quoted for a shell."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import click
from click.core import ParameterSource

from fuseconv.commands.options import reading

READING = frozenset({*inspect.signature(reading).parameters, "rules"})
"""The names of the parameters for reading a model and its rules."""


def fuseconv(*words: str) -> str:
    """Returns a `fuseconv` command for a shell in this environment.

    If the shell would find no `fuseconv`, or that of another environment, the command has the path of this one's.
    """
    name = _found_as("fuseconv")
    return shlex.join((name, *words) if name else (sys.executable, "-m", "fuseconv", *words))


def python(*words: str) -> str:
    """Returns a command for a shell that starts the Python of this process."""
    return shlex.join((_found_as("python") or sys.executable, *words))


def _found_as(name: str) -> str | None:
    """Returns how a shell finds a program of this environment: by its name or by its path. None if there is none."""
    path = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == path:
        return name
    return str(path) if path.is_file() else None


def after_convert(bundle: Path) -> tuple[str, ...]:
    """Returns the commands that verify a new bundle, run it, and load it in Python."""
    name = str(bundle)
    inputs = click.get_current_context().params["inputs_file"]
    given = () if inputs is None else ("--inputs", str(inputs))
    loaded = f"import fuseconv; model = fuseconv.load({json.dumps(name)})"
    return (
        fuseconv("verify", name),
        fuseconv("run", name, *given, "-o", "outputs.safetensors"),
        python("-i", "-c", loaded),
    )


def after_match(model: Path, plan: Path) -> tuple[str, ...]:
    """Returns the `convert` command that follows `match`: with its plan and its model-loading options."""
    return (fuseconv("convert", str(model), "--plan", str(plan), *_given()),)


def after_draft(model: Path, path: Path, rule: str, *, is_pack: bool) -> tuple[str, ...]:
    """Returns the commands that check a drafted rule and show where it applies in the model.

    For a rule pack, the first commands build the pack and test its op.
    """
    trusted = ("--trust", "code") if is_pack else ()
    given = _given(READING - {"rules"})
    trusted_here = trusted if "code" not in click.get_current_context().params["trust"] else ()
    build = shlex.join(("sh", str(path / "build.sh"))), python("-m", "pytest", str(path / "tests"))
    check = fuseconv("rules", "check", str(path), "--rule", rule, *trusted)
    test = fuseconv("rules", "test", str(path), str(model), "--once", *trusted_here, *given)
    return (*(build if is_pack else ()), check, test)


def after_failure(model: Path) -> str:
    """Returns the `fuseconv blame` command that finds why a conversion failed, with the options of the conversion."""
    return fuseconv("blame", str(model), *_given(READING | {"without", "target", "plan", "allow"}))


def _given(names: Collection[str] = READING) -> list[str]:
    """Returns the options that the user passed, as command-line words. Includes only the parameters in `names`."""
    context, words = click.get_current_context(), []
    for option in context.command.params:
        name = str(option.name)
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            value = context.params[name]
            for one in value if isinstance(value, tuple) else (value,):
                words += [option.opts[-1], str(one)]
    return words
