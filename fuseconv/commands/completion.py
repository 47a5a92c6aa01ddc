"""Implements tab completion, after `eval "$(_FUSECONV_COMPLETE=bash_source fuseconv)"`. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete
from click.types import FuncParamType

from fuseconv.commands import streams
from fuseconv.errors import FileError, FuseconvError

VARIABLE = "_FUSECONV_COMPLETE"

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(command: click.Command, instruction: str) -> int:
    """Executes the instruction in the environment variable `VARIABLE`, and returns the exit status.

    Args:
        command: the command group.
        instruction: `bash_source` prints the completion script, and `bash_complete` prints the possible words. Other
            shells have their own instructions.

    Returns:
        0 for success, and 1 if the instruction is unknown or the command that is being typed is invalid, so that there
        is nothing to complete. Otherwise the exit status of the error in writing the output.
    """
    try:
        return shell_complete(command, {}, "fuseconv", VARIABLE, instruction)
    except FuseconvError:
        return 1
    except BrokenPipeError:
        return streams.UNREAD
    except OSError as error:
        lost = FileError(
            f"the shell completion cannot be written: {error.strerror}", where="stdout", fix="free disk space"
        )
        streams.tell(f"error: {lost}")
        return lost.exit_status


class _Path(FuncParamType):  # type: ignore[type-arg]  # generic only from click 8.5 on
    """The type of a path parameter, for which the shell completes file names."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Leaves the completion of file names to the shell."""
        return [CompletionItem(incomplete, type="file")]


PATH = _Path(Path)


def words(names: Iterable[str]) -> Completer:
    """Returns a completion function for an option whose value is one of these words."""

    def completed(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return completed


def lists(names: Iterable[str]) -> Completer:
    """Returns a completion function for an option whose value is a comma-separated list of these words.

    The function leaves out the words that the list already contains.
    """

    def completed(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [CompletionItem(before + comma + name) for name in names if name.startswith(last) and name not in given]

    return completed


def rule_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Returns the rules whose names begin with `incomplete`, from the file of `--rules` or the default rules."""
    from fuseconv.rulebook import own_rules

    rules = own_rules.load_rules(context.params.get("rules"))
    return [CompletionItem(rule.name, help=rule.doc) for rule in rules if rule.name.startswith(incomplete)]
