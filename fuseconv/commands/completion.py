"""What a shell completes after `eval "$(_FUSECONV_COMPLETE=bash_source fuseconv)"`. Nothing here imports torch."""

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
    """Answers the shell, and returns the exit status: `bash_source` prints the script, `bash_complete` the words.

    While a command is still being typed it may be wrong, so that an error means that there is nothing to complete.
    """
    try:
        return shell_complete(command, {}, "fuseconv", VARIABLE, instruction)
    except FuseconvError:
        return 1
    except BrokenPipeError:
        return streams.UNREAD
    except OSError as error:
        lost = FileError(f"the completion cannot be written: {error.strerror}", where="stdout", fix="free disk space")
        streams.tell(f"error: {lost}")
        return lost.exit_status


class _Path(FuncParamType):  # type: ignore[type-arg]  # it takes one only from click 8.5 on
    """A path, for which the shell completes the names of files."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002 - click's signature
        """Leaves it to the shell."""
        return [CompletionItem(incomplete, type="file")]


PATH = _Path(Path)


def words(names: Iterable[str]) -> Completer:
    """Returns the completer of an option that takes one of these words."""

    def completed(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return completed


def lists(names: Iterable[str]) -> Completer:
    """Returns the completer of an option that takes some of these words, separated by commas."""

    def completed(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        given = before.split(",")
        return [CompletionItem(before + comma + name) for name in names if name.startswith(last) and name not in given]

    return completed


def rule_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completes the name of a rule: of the file in `--rules` if it was typed, else of those that come with fuseconv."""
    from fuseconv.rulebook import own_rules

    rules = own_rules.load_rules(context.params.get("rules"))
    return [CompletionItem(rule.name, help=rule.doc) for rule in rules if rule.name.startswith(incomplete)]
