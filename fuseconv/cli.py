"""The command line: loads each command when it is called, and prints its result or error.

Results go to stdout; progress and logs go to stderr. With `--json`, stdout is one object:
`{"schema", "ok", "command", "result", "error"}`. Every command returns an `Outcome`. Every error is printed as three
lines and sets the exit status. `EXIT_STATUSES` lists what each status means.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fuseconv.commands import completion, streams
from fuseconv.commands.outcome import Outcome
from fuseconv.errors import FileError, FuseconvError, UpstreamError, UsageError, bug, is_out_of_memory
from fuseconv.version import __version__

SCHEMA = 1
INTERRUPTED = 130
WIDTH = 1000
"""The output width in columns. It is wider than any terminal, so that log lines are not wrapped."""

EXIT_STATUSES = """\b
Exit status:
  0  done
  1  a check failed: parity, a rule, the lock, --not-slower-than, or a model of convert-many
  2  an option, a rule file, a plan or a call is invalid
  3  refused: the input is damaged, or it would run code without --trust
  4  the model or this machine is not supported
  5  an exporter, a compiler, a runtime or the device failed
  6  reading or writing a file failed
  7  a bug in fuseconv
  130  interrupted
  141  done, but the program that reads the output closed the pipe

\b
Completion in bash (or zsh_source, fish_source):
  eval "$(_FUSECONV_COMPLETE=bash_source fuseconv)"
"""


class LazyGroup(click.Group):
    """A command group that lists commands and their help without importing them, and imports a command to run it."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], package: str = "fuseconv.commands", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy
        self.package = package

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Lists the commands in the order of the table `lazy`."""
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - as above
        """Imports the module of a command and returns the command, or None if the name is unknown."""
        if cmd_name not in self.lazy:
            return None
        name = cmd_name.replace("-", "_")
        command = getattr(importlib.import_module(f"{self.package}.{name}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolves a command. For an unknown command, raises an error that suggests the most similar name."""
        from difflib import get_close_matches

        if args and args[0] not in self.lazy and not args[0].startswith("-"):
            near = get_close_matches(args[0], self.lazy, n=1)
            fix = f"did you mean `{ctx.command_path} {near[0]}`?" if near else f"see `{ctx.command_path} --help`"
            raise UsageError(f"unknown command {args[0]!r}", where=ctx.command_path, fix=fix)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Prints the table of commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.lazy.items()))


COMMANDS = {
    "convert": "Fuse a model, export it for every target, and prove parity.",
    "convert-many": "Convert a list of models, and skip the bundles that are finished.",
    "verify": "Prove a bundle's parity again on this machine.",
    "blame": "Find which rule, op, weight, target or layer makes a result differ from the original.",
    "explain": "Show for each rule where it matched, where it nearly matched, and why not.",
    "match": "Write the plan of a conversion, for review or editing.",
    "inspect": "Show the contents of a model file or a bundle.",
    "report": "Write an HTML report on one bundle, or on two bundles side by side.",
    "run": "Run a bundle on inputs from a file.",
    "serve": "Serve bundles over HTTP (KServe v2), with batching.",
    "triton": "Write a bundle as a model for Triton Inference Server.",
    "swap": "Replace a bundle's weights, and prove parity again.",
    "add": "Add the AOTInductor package of this machine to a bundle, and prove its parity.",
    "materialize": "Write one target of a bundle as a single file that contains the weights.",
    "sign": "Sign every file of a bundle with a private key.",
    "bench": "Benchmark a bundle's targets on this machine.",
    "tune": "Measure which kernels are the fastest for a bundle on this GPU.",
    "rules": "List, show, check, draft and test rule files.",
    "doctor": "Show what this machine supports, or whether a bundle loads here.",
    "demo": "Convert a real pretrained sentence-embedding model.",
}


@click.group(
    cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_STATUSES
)
@click.version_option(__version__, prog_name="fuseconv")
@click.option("--debug", is_flag=True, help="Show tracebacks, and the warnings of PyTorch and other tools.")
def cli(debug: bool) -> None:
    """Turn a PyTorch model into a fused, deployable bundle, and prove that it computes the same results."""
    if not debug:
        import warnings

        # Deprecation warnings from torch and onnx concern fuseconv's developers, not its users. --debug shows them.
        warnings.filterwarnings("ignore")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit status. Prints tracebacks of errors only with --debug."""
    given = sys.argv[1:] if argv is None else argv
    arguments = sorted(given, key=lambda word: word != "--debug")  # --debug is accepted anywhere
    streams.prepare()
    if instruction := os.environ.get(completion.VARIABLE):
        return streams.settle(completion.complete(cli, instruction))
    return streams.settle(_run(arguments, _Ending(arguments)))


def _run(arguments: Sequence[str], end: _Ending) -> int:
    stdout = sys.stdout
    try:
        returned = cli.main(args=list(arguments), prog_name="fuseconv", standalone_mode=False)
        return end.finish(returned) if isinstance(returned, Outcome) else int(returned or 0)
    except FuseconvError as error:
        return end.fail(error, error.exit_status)
    except click.exceptions.NoArgsIsHelpError as error:
        streams.tell(error.format_message())
        return UsageError.exit_status
    except click.ClickException as error:
        return end.fail(_as_usage(error, end.command), UsageError.exit_status)
    except (click.Abort, KeyboardInterrupt):
        return end.fail(FuseconvError("interrupted", fix="run the command again"), INTERRUPTED)
    except SystemExit as error:
        if sys.stdout is not stdout:  # click raises this if the reader closed the pipe
            sys.stdout = stdout
            return streams.UNREAD
        ended = UpstreamError(
            f"the model's code raised SystemExit({error.code!r})", fix="remove the call of sys.exit from the model"
        )
        return end.fail(ended, ended.exit_status)
    except Exception as error:  # noqa: BLE001 - the one place where a bug becomes an exit status
        told = _unforeseen(error)
        return end.fail(told, told.exit_status)


def _unforeseen(error: Exception) -> FuseconvError:
    """Converts an unexpected exception into a FuseconvError: a fault of the machine, of another tool, or a bug."""
    reason = next(iter(str(error).splitlines()), "") or type(error).__name__
    if is_out_of_memory(error):
        fix = "free memory, narrow the ranges in --input, or convert with --device cpu"
        return UpstreamError(f"out of memory: {reason}", fix=fix)
    if isinstance(error, OSError):
        where = str(error.filename or "")
        return FileError(
            error.strerror or reason, where=where, fix="check the path, its permissions and the free disk space"
        )
    if isinstance(error, ImportError) and not str(error.name).startswith("fuseconv"):
        return UpstreamError(f"{error.name or 'a package'} cannot be imported: {reason}", fix="reinstall the package")
    return bug(error)


def _as_usage(error: click.ClickException, command: str) -> UsageError:
    """Converts click's exception for an invalid command line into a UsageError."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else f"fuseconv {command}".strip()
    if isinstance(error, click.NoSuchOption) and error.possibilities:
        fix = f"did you mean {' or '.join(error.possibilities)}?"
        return UsageError(f"unknown option {error.option_name}", where=path, fix=fix)
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Option):
        option, value = error.param.opts[-1], error.param.metavar or "VALUE"
        return UsageError(
            f"the option {option} is missing", where=path, fix=f"add {option} {value}: {error.param.help}"
        )
    return UsageError(error.format_message(), where=path, fix=f"see `{path} --help`")


class _Ending:
    """Prints the result or error of a command, as text or as one JSON object."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self.as_json = "--json" in arguments
        self.debug = "--debug" in arguments
        self.command = next((word for word in arguments if not word.startswith("-")), "")

    def finish(self, outcome: Outcome) -> int:
        """Prints the outcome of a command and returns the exit status: 0, or the status of the outcome's error."""
        status = outcome.error.exit_status if outcome.error is not None else 0
        try:
            if self.as_json:
                streams.say(self._record(outcome.error is None, outcome.result, outcome.error))
            elif not outcome.quiet:
                streams.say(_text(outcome))
        except BrokenPipeError:
            return status or streams.UNREAD
        except OSError as error:
            what = f"the output cannot be written: {error.strerror or error}"
            lost = FileError(what, where="stdout", fix="free disk space, or redirect the output elsewhere")
            streams.tell(f"error: {lost}")
            return status or lost.exit_status
        if outcome.error is not None and not self.as_json:
            streams.tell(f"error: {outcome.error}")
        if outcome.error is None and outcome.following and not self.as_json and not outcome.quiet:
            streams.tell("\n".join(["", "next:", *(f"    {command}" for command in outcome.following)]))
        return status

    def fail(self, error: FuseconvError, exit_status: int) -> int:
        """Prints an error that ended the command, with its traceback if `--debug` is set. Returns `exit_status`."""
        if self.debug:
            streams.tell(traceback.format_exc().rstrip())
        if not self.as_json:
            streams.tell(f"error: {error}")
            return exit_status
        try:
            streams.say(self._record(False, {}, error))
        except OSError:
            streams.tell(f"error: {error}")
        return exit_status

    def _record(self, ok: bool, result: Mapping[str, Any], error: FuseconvError | None) -> str:
        described = None
        if error is not None:
            described = {"code": error.code, "message": error.what, "where": error.where, "hint": error.fix}
        record = {"schema": SCHEMA, "ok": ok, "command": self.command, "result": result, "error": described}
        return json.dumps(record, indent=2, allow_nan=False)


def _text(outcome: Outcome) -> str:
    """Renders the outcome of a command as text, without trailing spaces."""
    from rich.console import Console

    from fuseconv.commands.escaping import Escaping

    seen = (sys.stdout is not None and sys.stdout.isatty()) or "COLUMNS" in os.environ
    console = Console(soft_wrap=True, width=None if seen else WIDTH, markup=False)
    console.push_render_hook(Escaping())
    with console.capture() as printed:
        outcome.render(console)
    return "\n".join(line.rstrip() for line in printed.get().splitlines())
