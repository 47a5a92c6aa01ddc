"""Defines the options `--method`: which methods of a model to convert, and which method of a bundle to use."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from fuseconv.bundle.methods import check_names, has_methods, method_folder, read_methods
from fuseconv.commands.options import reading
from fuseconv.contract.options import Options
from fuseconv.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

_OF = re.compile(r"^\s*(?P<method>\w+):(?P<text>.*)$", re.DOTALL)

methods_option = click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME[=ATTRIBUTE]",
    help="Method to convert, stored as NAME; may be repeated. Each --input then names its method: 'NAME:x=f32[8]'.",
)
method_option = click.option(
    "--method",
    metavar="NAME",
    help="Method of a bundle with several methods. [default: all methods, if the command supports that]",
)


def methods_of(methods: Sequence[str], source: Mapping[str, Any]) -> dict[str, Options]:
    """Returns the options for reading each method, split by the method's name in their values.

    Args:
        methods: the values of `--method`.
        source: the options for reading a model. Each input, range and state starts with the name of a method.

    Returns:
        The options for reading each method, by the method's name.

    Raises:
        UsageError: a name is passed twice or is not a valid method name, or an option does not name a method.
    """
    pairs = [(name, attribute or name) for name, _, attribute in (one.partition("=") for one in methods)]
    names = [name for name, _ in pairs]
    check_names(names)
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            f"the method {twice[0]} is given twice", where=f"--method {twice[0]}", fix="give each name only once"
        )
    if source["inputs_file"] is not None:
        raise UsageError(
            "--inputs cannot be combined with --method", where="--inputs", fix="use --input NAME:SPEC instead"
        )
    flags = {"inputs": "--input", "ranges": "--input-range", "states": "--state"}
    split = {key: _by_method(source[key], names, flag) for key, flag in flags.items()}
    return {
        name: replace(reading(**{**source, **{key: of[name] for key, of in split.items()}}), method=attribute)
        for name, attribute in pairs
    }


def _by_method(texts: Iterable[str], names: Sequence[str], flag: str) -> dict[str, tuple[str, ...]]:
    """Splits values of the form `METHOD:TEXT`, and returns the texts of each method by the method's name.

    Raises:
        UsageError: a value does not begin with one of `names`. The error names the option `flag`.
    """
    found: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
    for text in texts:
        match = _OF.match(text)
        if match is None or match["method"] not in found:
            raise UsageError(
                f"the value {text!r} does not begin with the name of a method",
                where=flag,
                fix=f"write {flag} '{names[0]}:{text}'; the methods are {', '.join(names)}",
            )
        found[match["method"]] += (match["text"],)
    return found


def plans_in(folder: Path | None, methods: Iterable[str]) -> dict[str, Path]:
    """Returns the path of the plan of each method in the folder of `--plan`. Returns no plan if there is no folder.

    Raises:
        UsageError: the folder does not contain the plan of a method.
    """
    if folder is None:
        return {}
    plans = {name: folder / name / "plan.json" for name in methods}
    for name, path in plans.items():
        if not path.is_file():
            raise UsageError(
                f"there is no plan for the method {name}: {name}/plan.json",
                where=f"--plan {folder}",
                fix="with --method, --plan is a folder with NAME/plan.json, as the folder `methods` of a bundle",
            )
    return plans


def check_no_buckets(bucket: str | None) -> None:
    """Checks that `--bucket` is not combined with `--method`.

    Raises:
        UsageError: there are buckets.
    """
    if bucket is not None:
        raise UsageError(
            "--bucket cannot be combined with --method: the batch of a state, which one method returns and another "
            "takes, must not be padded",
            where="--bucket",
            fix="remove --bucket: CUDA graphs are then captured per batch size. For a method without state, convert "
            "a module whose forward is this method, to a bundle of its own",
        )


def chosen(bundle: Path, method: str | None) -> Path:
    """Returns the folder of the method with this name in a bundle, or the bundle's folder if `method` is None.

    Raises:
        UsageError: the bundle does not contain the method.
    """
    if method is None:
        return bundle
    names = read_methods(bundle).methods if has_methods(bundle) else []
    if method not in names:
        raise UsageError(
            f"the bundle has no method {method}",
            where=str(bundle),
            fix=f"use one of {', '.join(names)}" if names else "remove --method: the bundle has only one method",
        )
    return method_folder(bundle, method)
