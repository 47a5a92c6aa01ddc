"""Defines the options that several commands share, and converts the options for reading a model to `Options`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fuseconv.bundle.manifest import read_manifest
from fuseconv.bundle.methods import has_methods
from fuseconv.commands.completion import PATH, lists, rule_names, words
from fuseconv.commands.numbers import FiniteRange
from fuseconv.contract.dtypes import names_of
from fuseconv.contract.input_text import parse_inputs, parse_ranges, parse_states
from fuseconv.contract.options import DEVICES, FLOATS, TRUST, Options
from fuseconv.errors import FileError, UsageError
from fuseconv.targets import TARGETS, check_known
from fuseconv.untrusted.files import check_text, leads_somewhere
from fuseconv.untrusted.hub import reference

F = TypeVar("F", bound=Callable[..., Any])
OptionalPath = TypeVar("OptionalPath", Path, Path | None)


def existing(_context: click.Context, _argument: click.Parameter, path: OptionalPath) -> OptionalPath:
    """Checks and returns an input path, or None if no path is passed. Runs before the slow import of torch.

    Raises:
        FileError: the path does not exist.
        UsageError: the path is not UTF-8.
    """
    if path is not None:
        if not leads_somewhere(path):
            raise FileError.absent(path)
        check_text(path)
    return path


def existing_model(context: click.Context, argument: click.Parameter, path: OptionalPath) -> OptionalPath:
    """Checks and returns the path of a model like `existing`. A model on a hub is looked up when it is read.

    Raises:
        FileError: the path does not exist.
        UsageError: the path is not UTF-8, or begins with `hf:` and does not name a model.
    """
    return path if path is not None and reference(path) is not None else existing(context, argument, path)


def named(_context: click.Context, _argument: click.Parameter, path: Path | None) -> Path | None:
    """Checks and returns the output path of a bundle, or None if no path is passed. Runs before the import of torch.

    Raises:
        UsageError: the path is not UTF-8.
    """
    if path is not None:
        check_text(path)
    return path


def writable(_context: click.Context, _argument: click.Parameter, path: Path) -> Path:
    """Checks and returns the path of an output file. Runs before any work starts.

    Raises:
        FileError: the path is a folder, or its parent is not a folder.
        UsageError: the path is not UTF-8.
    """
    check_text(path)
    if path.is_dir():
        raise FileError("the output path is a folder", where=str(path), fix="choose the path of a file")
    parent = path.absolute().parent
    if not parent.is_dir():
        what = "is not a folder" if parent.exists() else "does not exist"
        what = f"the folder of the output {what}"
        raise FileError(what, where=str(parent), fix="choose a path in an existing folder")
    return path


def _bundle(_context: click.Context, _argument: click.Parameter, path: Path) -> Path:
    """Checks that a path is a bundle, and returns the path. Raises UsageError or RefusedError if it is not."""
    if not has_methods(path):
        read_manifest(path)
    return path


MODEL_OPTIONS = (
    click.option(
        "--input",
        "inputs",
        multiple=True,
        metavar="SPEC",
        help="Input, for example 'ids=i64[batch:1..64,seq:2..512]'. May be repeated. 'n:32..512:32': multiples of 32.",
    ),
    click.option(
        "--inputs",
        "inputs_file",
        type=PATH,
        metavar="FILE",
        callback=existing,
        help="File of example inputs: .safetensors, .npz or .pt.",
    ),
    click.option(
        "--input-range",
        "ranges",
        multiple=True,
        metavar="RANGE",
        help="Range of the random values of an input, for example 'ids=0..30521'. May be repeated.",
    ),
    click.option(
        "--state",
        "states",
        multiple=True,
        metavar="INPUT=OUTPUT",
        help="Input that an output replaces after each call, as in 'cache=new_cache'. Starts as zero. May be repeated.",
    ),
    click.option(
        "--cache-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="Capacity in tokens of the key-value cache of a model that generates. [default: the model's positions]",
    ),
    click.option(
        "--model",
        "factory",
        metavar="PKG:FACTORY",
        help="Class or function that builds the module for a state dict, as file.py:name or pkg.mod:name.",
    ),
    click.option(
        "--trust",
        multiple=True,
        metavar="KIND",
        shell_complete=words(TRUST),
        help="Kind of code that the source may run: pickle, torchscript, native or code. May be repeated.",
    ),
    click.option(
        "--device",
        default="cpu",
        show_default=True,
        metavar="DEVICE",
        shell_complete=words(DEVICES),
        help="Device to convert for: cpu or cuda.",
    ),
    click.option(
        "--dtype",
        metavar="DTYPE",
        shell_complete=words(names_of(FLOATS)),
        help="Cast the model to f64, f32, f16 or bf16 first. Names like float32 and half are also accepted.",
    ),
)

rules_option = click.option(
    "--rules",
    type=PATH,
    metavar="FILE",
    help="Rule file or folder of rule files. [default: the package's default.json]",
)
rules_trust_option = click.option(
    "--trust",
    multiple=True,
    metavar="KIND",
    shell_complete=words(("code",)),
    help="Kind of code that the rules may run. The only KIND is code, which lets a pack register its custom ops.",
)
PACK_OPTIONS = (
    click.option(
        "--rules",
        type=PATH,
        metavar="FILE",
        help="Rules of the conversion, if BUNDLE calls ops of a rule pack: the compiler needs their Python files.",
    ),
    rules_trust_option,
)
NO_RULE_OPTION = click.option(
    "--no-rule",
    "without",
    multiple=True,
    metavar="NAME",
    shell_complete=rule_names,
    help="Do not apply this rule. May be repeated.",
)
PLAN_OPTIONS = (
    click.option(
        "--plan",
        type=PATH,
        metavar="FILE",
        callback=existing,
        help="Execute this plan instead of matching rules. With --method: a folder with NAME/plan.json per method.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="NAME",
        help="Allow the rules that change numerical results and declare NAME in `allow`. May be repeated.",
    ),
)


TARGET_NAMES = ", ".join(TARGETS)


def _target(_context: click.Context, _argument: click.Parameter, name: str | None) -> str | None:
    """Checks and returns the name of a target, or None if no name is passed."""
    check_known(() if name is None else (name,))
    return name


def separated(words: tuple[str, ...]) -> tuple[str, ...]:
    """Splits comma-separated lists of names into one list."""
    return tuple(name.strip() for word in words for name in word.split(",") if name.strip())


def several_targets(_context: click.Context, argument: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Splits comma-separated lists of target names, and checks and returns the names. Runs before torch is imported.

    Raises:
        UsageError: a target is unknown, or the option is given without a name.
    """
    names, option = separated(words), argument.opts[-1]
    check_known(names, option)
    if words and not names:
        raise UsageError("no target is named", where=option, fix=f"name one, or leave {option} out")
    return names


def named_targets(default: str) -> Callable[[F], F]:
    """Returns an option for several targets. `default` describes the default targets in the help text."""
    text = f"{TARGET_NAMES}. Separate several by commas, or repeat the option. [default: {default}]"
    return click.option(
        "--target", multiple=True, metavar="NAMES", callback=several_targets, shell_complete=lists(TARGETS), help=text
    )


target_option = click.option(
    "--target",
    metavar="NAME",
    callback=_target,
    shell_complete=words(TARGETS),
    help=f"{TARGET_NAMES}. [default: the bundle's default target]",
)
targets_option = named_targets("all")


def against_option(default: str) -> Callable[[F], F]:
    """Returns the option for the original model of a bundle. `default` says what is done without it."""
    return click.option(
        "--against",
        type=PATH,
        metavar="MODEL",
        callback=existing_model,
        help=f"Original model of the bundle. [default: {default}]",
    )


def gpus_option(of: str) -> Callable[[F], F]:
    """Returns the option for the number of GPUs on Ray. `of` says what gets them."""
    text = f"Number of GPUs per {of} on Ray. May be a fraction."
    return click.option("--gpus", type=FiniteRange(0), default=0.0, show_default=True, help=text)


signer_option = click.option(
    "--signer",
    type=PATH,
    metavar="FILE",
    callback=existing,
    help="Public key (PEM). First check that its holder has signed every file of the bundle with `fuseconv sign`.",
)
model_argument = click.argument("model", type=PATH, callback=existing_model)
bundle_argument = click.argument("bundle", type=PATH, callback=_bundle)


def add_options(options: tuple[Callable[[F], F], ...]) -> Callable[[F], F]:
    """Returns a decorator that adds the options in the given order."""

    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


model_options = add_options(MODEL_OPTIONS)
rules_options = add_options((rules_option, NO_RULE_OPTION))
plan_options = add_options(PLAN_OPTIONS)
pack_options = add_options(PACK_OPTIONS)
json_option = click.option(
    "--json", "as_json", is_flag=True, expose_value=False, help="Print the result as one JSON object."
)


def reading(
    inputs: tuple[str, ...],
    inputs_file: Path | None,
    ranges: tuple[str, ...],
    states: tuple[str, ...],
    cache_length: int | None,
    factory: str | None,
    trust: tuple[str, ...],
    device: str,
    dtype: str | None,
) -> Options:
    """Converts the values of `MODEL_OPTIONS` to `Options`.

    Raises:
        UsageError: a value is malformed, or is not one of the allowed words.
    """
    return Options(
        model=factory,
        inputs=parse_inputs(inputs),
        inputs_file=inputs_file,
        input_ranges=parse_ranges(ranges),
        state=parse_states(states),
        cache_length=cache_length,
        trust=frozenset(trust),
        device=device,
        dtype=dtype,
    )


def check_rules(rules: Path | None, without: tuple[str, ...], allow: tuple[str, ...] = ()) -> None:
    """Checks `--rules`, `--no-rule` and `--allow` if one is passed, so that errors are reported before torch's import.

    Raises:
        RuleError: a rule file is missing or invalid, or there is no rule with a name in `without`.
        UsageError: no rule declares a name in `allow`.
    """
    if rules is not None or without or allow:
        from fuseconv.matching.allowed import check_allowed
        from fuseconv.rulebook import listed, own_rules

        check_allowed(allow, listed.own(without) if rules is None else own_rules.load_rules(rules, without))
