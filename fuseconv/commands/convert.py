"""`fuseconv convert`: converts a model file to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fuseconv.bundle.manifest import bundle_folder, check_replaceable
from fuseconv.commands.completion import PATH, lists
from fuseconv.commands.following import after_convert, after_failure
from fuseconv.commands.invocation import invocation
from fuseconv.commands.methods import check_no_buckets, methods_of, methods_option, plans_in
from fuseconv.commands.options import (
    check_rules,
    json_option,
    model_argument,
    model_options,
    named,
    plan_options,
    reading,
    rules_options,
    separated,
    several_targets,
    targets_option,
)
from fuseconv.commands.outcome import Outcome
from fuseconv.commands.progress import shown
from fuseconv.commands.settings import Configured, Settings
from fuseconv.commands.verbosity import quiet_option, verbose_option
from fuseconv.contract.buckets import parse_buckets
from fuseconv.errors import ParityError, SlowerError, UsageError
from fuseconv.measure.ways import peers_of
from fuseconv.processes.imports import imports
from fuseconv.processes.memory import keep_freed
from fuseconv.targets import TARGETS
from fuseconv.untrusted.files import leads_somewhere

if TYPE_CHECKING:
    from rich.console import Console

    from fuseconv.pipeline.tune import Tune


@click.command(cls=Configured)
@model_argument
@rules_options
@targets_option
@click.option(
    "-o",
    "--output",
    type=PATH,
    callback=named,
    metavar="FOLDER",
    help="Output bundle. [default: MODEL.fuseconv next to MODEL]",
)
@methods_option
@model_options
@plan_options
@click.option(
    "--bucket", metavar="BUCKETS", help="Sizes that a batch is padded to for CUDA graphs, for example 'batch=1,8,32'."
)
@click.option(
    "--tune",
    type=click.Choice(("none", "quick", "full")),
    help="Time the matches, and leave alone those that are not faster. [default: quick for CUDA, none for a CPU]",
)
@click.option(
    "--search/--no-search",
    default=None,
    help="Time other forms of the linear algebra, such as another order of products. [default: with --tune full]",
)
@click.option(
    "--not-slower-than",
    multiple=True,
    metavar="NAMES",
    callback=lambda _context, _argument, words: peers_of(separated(words)),
    help="Fail, and write nothing, if the fastest target is slower than eager, compile or aoti. May be repeated.",
)
@click.option(
    "--self-contained",
    multiple=True,
    metavar="NAMES",
    callback=several_targets,
    shell_complete=lists(TARGETS),
    help="Targets whose files contain the weights, instead of sharing weights.safetensors. May be repeated.",
)
@click.option("--lock", is_flag=True, help="Record the matches of each rule in fuseconv.lock.")
@click.option("--frozen", is_flag=True, help="Fail if a match of fuseconv.lock is missing, or if there is a new match.")
@click.option("--dry-run", is_flag=True, help="Match the rules and print the fusions, but write nothing.")
@click.option(
    "--allow-mismatch", is_flag=True, help="Keep a bundle that fails the parity check, and mark it as failing."
)
@click.option(
    "--blame/--no-blame",
    default=True,
    help="If parity fails, search for the cause for up to a minute, as `fuseconv blame` does. [default: blame]",
)
@click.option(
    "--reproducible",
    is_flag=True,
    help="Write the same bytes in each such conversion, and name the targets for which this is not possible.",
)
@click.option("--strict", is_flag=True, help="Fail if any match or target has to be left out.")
@verbose_option
@quiet_option
@json_option
@click.pass_obj
def convert(
    settings: Settings,
    /,
    model: Path,
    rules: Path | None,
    without: tuple[str, ...],
    target: tuple[str, ...],
    output: Path | None,
    methods: tuple[str, ...],
    plan: Path | None,
    allow: tuple[str, ...],
    bucket: str | None,
    tune: Tune | None,
    search: bool | None,
    not_slower_than: tuple[str, ...],
    self_contained: tuple[str, ...],
    lock: bool,
    frozen: bool,
    dry_run: bool,
    allow_mismatch: bool,
    blame: bool,
    reproducible: bool,
    strict: bool,
    verbose: bool,
    **source: Any,
) -> Outcome:
    """Fuse MODEL, export it for every target, and prove parity.

    MODEL is a .pt2 archive, a TorchScript archive, a pickled module, a state dict, or a Hugging Face folder; the
    kind is detected from its content. hf://OWNER/NAME@REVISION is a model on a Hugging Face hub, which is downloaded.
    """
    if lock and (frozen or dry_run):
        other = "--frozen" if frozen else "--dry-run"
        raise UsageError(
            f"--lock cannot be combined with {other}: --lock writes fuseconv.lock, and {other} must not change it",
            where="--lock",
            fix=f"remove --lock or {other}",
        )
    source_of = click.get_current_context().get_parameter_source
    for other, given in (("--plan", plan), ("--frozen", frozen), ("--dry-run", dry_run)):
        for name, wanted in (("tune", tune), ("search", search)):
            if given and wanted and source_of(name) is ParameterSource.COMMANDLINE:
                what = f"--{name} cannot be combined with {other}: --{name} runs benchmarks, and {other} runs none"
                fix = f"remove --{name} or {other}"
                raise UsageError(what, where=f"--{name}", fix=fix)
    if dry_run and source_of("not_slower_than") is ParameterSource.COMMANDLINE:
        fix = "remove --not-slower-than or --dry-run"
        raise UsageError(
            "--not-slower-than cannot be combined with --dry-run: --dry-run writes no bundle to time",
            where="--not-slower-than",
            fix=fix,
        )
    if methods:
        check_no_buckets(bucket)
        several = methods_of(methods, source)
        plans = plans_in(plan, several)
        check_rules(rules, without, allow)
        keep_freed()
        with imports():
            from fuseconv.commands import results
            from fuseconv.matching.lock import NAME
            from fuseconv.pipeline.conversion import plan_to_json, rejection
            from fuseconv.pipeline.methods import convert_methods, match_methods

        locked = settings.root / NAME
        both: dict[str, Any] = {"rules": rules, "without": without, "target": target, "plan": plans, "allow": allow}
        both |= {"output": output, "frozen": locked if frozen else None, "progress": shown}
        if dry_run:
            plans_found = match_methods(model, several, **both)
            errors = [error for one in plans_found.values() if (error := rejection(one, str(model))) is not None]
            return Outcome(
                {"methods": {name: plan_to_json(one) for name, one in plans_found.items()}},
                lambda console: results.print_method_fusions(console, plans_found),
                errors[0] if strict and errors else None,
            )
        made = convert_methods(
            model,
            several,
            allow_mismatch=allow_mismatch,
            strict=strict,
            lock=locked if lock else None,
            tune=tune,
            search=search,
            not_slower_than=not_slower_than,
            self_contained=self_contained,
            reproducible=reproducible,
            invocation=invocation(),
            **both,
        )
        return Outcome(made.to_json(), lambda console: results.print_methods(console, made), made.error())
    options, buckets = reading(**source), parse_buckets(bucket) if bucket is not None else None
    check_rules(rules, without, allow)
    if leads_somewhere(folder := bundle_folder(model, output)):
        check_replaceable(folder)

    keep_freed()
    with imports():
        from fuseconv.commands import blame_lines, results, speeds
        from fuseconv.matching.lock import NAME
        from fuseconv.pipeline import conversion
        from fuseconv.pipeline.blame import CONVERT_LIMIT
        from fuseconv.pipeline.convert import convert as convert_model
        from fuseconv.pipeline.match import match

    locked, command = settings.root / NAME, after_failure(model)
    if dry_run:
        found = match(
            model,
            rules=rules,
            without=without,
            target=target,
            options=options,
            plan=plan,
            allow=allow,
            output=output,
            frozen=locked if frozen else None,
            buckets=buckets,
            progress=shown,
        )
        error = conversion.rejection(found, str(model)) if strict else None
        return Outcome(conversion.plan_to_json(found), lambda console: results.print_fusions(console, found), error)
    try:
        done = convert_model(
            model,
            rules=rules,
            without=without,
            target=target,
            output=output,
            options=options,
            plan=plan,
            allow=allow,
            allow_mismatch=allow_mismatch,
            strict=strict,
            buckets=buckets,
            tune=tune,
            search=search,
            not_slower_than=not_slower_than,
            self_contained=self_contained,
            lock=locked if lock else None,
            frozen=locked if frozen else None,
            blame_limit=CONVERT_LIMIT if blame else 0,
            reproducible=reproducible,
            invocation=invocation(),
            progress=shown,
        )
    except ParityError as failure:
        if (found_blame := failure.blame) is None:
            raise
        result = {"blame": found_blame.to_json()}
        return Outcome(result, lambda console: blame_lines.print_faults(console, found_blame, command), failure)
    except SlowerError as slower:
        rows = slower.rows
        result = {"peers": [row.to_json() for row in rows]}
        return Outcome(result, lambda console: speeds.print_peers(console, rows), slower)

    def render(console: Console) -> None:
        results.print_conversion(console, done)
        if verbose:
            console.print()
            results.print_parity(console, done.report, everything=True)
        if done.blame is not None:
            console.print()
            blame_lines.print_faults(console, done.blame, command)

    following = after_convert(done.bundle) if done.report.ok else ()
    return Outcome(done.to_json(), render, done.error(), following=following)
