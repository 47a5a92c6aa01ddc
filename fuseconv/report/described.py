"""Reads everything that a report shows about one bundle into dataclasses, without torch."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.files import MANIFEST, File, measure_file
from fuseconv.bundle.manifest import PLAN, LeftOut, Limit, Manifest, RuleUse, Source, open_bundle
from fuseconv.bundle.methods import METHODS
from fuseconv.bundle.tuned import Tuned
from fuseconv.errors import RefusedError
from fuseconv.matching.steps import Choice, Miss, Plan, Step, Trial, read_plan
from fuseconv.report.archive import Named, read_named
from fuseconv.report.drawn import draw
from fuseconv.report.graph import Graph
from fuseconv.report.growth import Growth, read_growth
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.tuning.gains import gains

CAPTURED, FUSED = "original/model.pt2", "export"
"""The file of the captured program, and the name of the target whose file contains the fused program."""


@dataclass(frozen=True)
class Match:
    """A match of the plan.

    Attributes:
        rule: the name of the rule.
        stage: the stage of the rule.
        nodes: the nodes that are replaced, in execution order.
        ops: the op of each node.
        operands: the value that each pattern variable stands for, as text.
        replace: the statements of the rule's replacement.
        applied: whether the match is replaced in at least one target.
        choices: the times of a model call with and without the fusion of this match, by the name of the target.
        trial: the figures of the numerical test of this match. None if the match was not tested.
        after: the positions in the fused graph's `nodes` of the nodes that replace the match. Empty if there are none.
    """

    rule: str
    stage: str
    nodes: tuple[str, ...]
    ops: tuple[str, ...]
    operands: Mapping[str, str]
    replace: tuple[str, ...]
    applied: bool
    choices: Mapping[str, Choice]
    trial: Trial | None
    after: tuple[int, ...]


@dataclass(frozen=True)
class Described:
    """Everything that a report shows about one bundle.

    Attributes:
        name: the name of the bundle's folder, followed by the name of the method if this is a method of a bundle.
        fuseconv: the version of fuseconv that wrote the bundle.
        sha256: the hash of the bundle's manifest, which contains the hashes of all other files.
        source: the model that was converted.
        command: the command of the conversion, without folders. None if it is not recorded.
        revision: the Git commit at which the command ran. None if it is not recorded.
        environment: the machine and the package versions of the conversion.
        inputs: the inputs, in the notation of `--input`.
        outputs: the names of the outputs.
        device: the device for which the bundle was built.
        dtype: the dtype of the weights.
        targets: the file of each target, by the target's name.
        packages: the architectures for which a target was compiled, by the target's name, if there are several.
        mismatch: whether the bundle was kept although a row of its parity table fails.
        tolerance: the row of the tolerance table for the dtype. Empty if the table has no such row.
        parity: one row per target, case and output, as in the manifest. The rows of a package that `fuseconv add` added
            name its architecture with the target.
        left_out: the targets that the bundle does not contain, with the reasons.
        limits: the results that the runtimes compute differently for special values.
        tuned: the times of the targets. None if the targets were not timed.
        gains: for each class of matches that was timed, the time of a call with and without its fusions.
        rules: the rules that were applied.
        docs: the descriptions of applied rules, by the rule's name. Only rules that come with fuseconv, unchanged.
        matches: the matches of the plan, in order.
        misses: the places where rules do not apply, with the reasons.
        captured: the graph of the model before fusion. None if the bundle does not contain `original/model.pt2`.
        fused: the graph of the export target. In a bundle without this target, the captured graph changed by the plan.
            None if the bundle contains neither.
        drawn_of: the name of the target whose fusions `fused` shows, if it was drawn from the plan. Otherwise None.
        measure: the command whose report also shows the error at the borders of modules and matches.
        growth: the error at the borders of modules and matches. None if no result of `blame` was given.
        files: the size and hash of each file in the bundle, by its path.
    """

    name: str
    fuseconv: str
    sha256: str
    source: Source
    command: str | None
    revision: str | None
    environment: Environment
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    device: str
    dtype: str
    targets: Mapping[str, str]
    packages: Mapping[str, tuple[str, ...]]
    mismatch: bool
    tolerance: Mapping[str, float]
    parity: list[dict[str, JsonValue]]
    left_out: list[LeftOut]
    limits: list[Limit]
    tuned: Tuned | None
    gains: tuple[Mapping[str, Any], ...]
    rules: list[RuleUse]
    docs: Mapping[str, str]
    matches: tuple[Match, ...]
    misses: tuple[Miss, ...]
    captured: Graph | None
    fused: Graph | None
    drawn_of: str | None
    measure: str
    growth: Growth | None
    files: Mapping[str, File]


def describe(folder: Path, blame: Path | None = None) -> Described:
    """Reads everything that a report shows about a bundle of one method, or about one method of a bundle.

    Args:
        folder: the folder of the bundle or method.
        blame: the file with the output of `fuseconv blame --json` for this bundle or method. None if there is none.

    Raises:
        RefusedError: a file of the bundle is missing, damaged, swapped or unexpected.
        RuleError: the plan is invalid.
        UsageError: the folder is not a bundle, or `blame` is the result for another model.
        FileError: `blame` cannot be read.
    """
    manifest = open_bundle(folder)
    plan = read_plan(folder / PLAN)
    named = _named(folder, manifest, CAPTURED)
    captured = named.graph if named else None
    stored = _named(folder, manifest, manifest.targets.get(FUSED, ""))
    drawn_of = None if stored or not named else min(manifest.targets)
    fused = _drawn(folder, named, plan, drawn_of) if named and drawn_of else stored.graph if stored else None
    nodes = {node.name for node in captured.nodes} if captured else set[str]()
    return Described(
        name=_name(folder.absolute()),
        fuseconv=manifest.fuseconv,
        sha256=measure_file(folder / MANIFEST).sha256,
        source=manifest.source,
        command=shlex.join(manifest.invocation.command) if manifest.invocation else None,
        revision=manifest.invocation.revision if manifest.invocation else None,
        environment=manifest.environment,
        inputs=tuple(map(str, manifest.contract.inputs)),
        outputs=manifest.contract.outputs,
        device=manifest.contract.device,
        dtype=manifest.dtype,
        targets=dict(sorted(manifest.targets.items())),
        packages={
            one.target: tuple(each.environment.architecture for each in manifest.packages_of(one.target))
            for one in manifest.packages
        },
        mismatch=manifest.mismatch,
        tolerance=manifest.tolerances.get(manifest.dtype, {}),
        parity=[*manifest.parity, *_added_rows(manifest)],
        left_out=manifest.left_out,
        limits=manifest.limits,
        tuned=manifest.tuned,
        gains=tuple(gain.to_json() for gain in gains(plan, manifest.targets)),
        rules=manifest.rules,
        docs={use.name: doc for use in manifest.rules if (doc := _docs().get(use.sha256))},
        matches=tuple(_matches(plan, manifest.targets, fused)),
        misses=plan.misses,
        captured=captured,
        fused=fused,
        drawn_of=drawn_of,
        measure=_measure(folder.absolute(), manifest),
        growth=None if blame is None else read_growth(blame, nodes),
        files=manifest.files,
    )


def _name(folder: Path) -> str:
    """Returns the name of a bundle's folder. For a method, returns `BUNDLE: METHOD`."""
    return f"{folder.parents[1].name}: {folder.name}" if folder.parent.name == METHODS else folder.name


@cache
def _docs() -> Mapping[str, str]:
    """Returns the description of each rule that comes with fuseconv, by the rule's hash."""
    return {rule.sha256: rule.doc for rule in load_rules()}


def _named(folder: Path, manifest: Manifest, name: str) -> Named | None:
    """Reads the graph in a torch.export file of the bundle. Returns None if the bundle does not contain this file."""
    return read_named(folder / name, manifest.contract) if name in manifest.files else None


def _drawn(folder: Path, captured: Named, plan: Plan, target: str) -> Graph:
    """Draws the fused graph of a target by the plan. Raises RefusedError if the plan does not fit the graph."""
    try:
        return draw(captured, plan.of(target).applied)
    except ValueError as error:
        what = f"the plan does not fit the captured graph: {error}"
        raise RefusedError(
            what, where=str(folder / PLAN), fix="convert the model again, or copy the bundle again"
        ) from error


def _added_rows(manifest: Manifest) -> Iterator[dict[str, JsonValue]]:
    """Yields the parity rows of the packages that were added on other machines."""
    for package in manifest.packages:
        for row in package.parity:
            yield {**row, "target": f"{package.target} for {package.environment.architecture}"}


def _measure(folder: Path, manifest: Manifest) -> str:
    """Returns the command that writes the report again with the errors of the layers.

    The paths are relative to the folder of the bundle, because a report does not name folders of this machine.
    """
    method = ["--method", folder.name] if folder.parent.name == METHODS else []
    name = folder.parents[1].name if method else folder.name
    original = (manifest.invocation.original() if manifest.invocation else None) or "MODEL"
    return shlex.join(["fuseconv", "report", name, *method, "--against"]) + f" {original}"


def _matches(plan: Plan, targets: Collection[str], fused: Graph | None) -> list[Match]:
    """Returns the matches of a plan, each with the nodes of the fused graph that replace it."""
    after: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for position, node in enumerate(fused.nodes if fused else ()):
        for made in node.made:
            after.setdefault((made.rule, made.nodes), []).append(position)
    return [_match(step, targets, tuple(after.get((step.rule, step.nodes), ()))) for step in plan.steps]


def _match(step: Step, targets: Collection[str], after: tuple[int, ...]) -> Match:
    return Match(
        rule=step.rule,
        stage=step.stage,
        nodes=step.nodes,
        ops=step.ops,
        operands={name: _operand(binding) for name, binding in step.bindings.items()},
        replace=step.replace,
        applied=any(map(step.applies, targets)),
        choices=step.choices,
        trial=step.trial,
        after=after,
    )


def _operand(binding: Mapping[str, Any]) -> str:
    """Formats the value that a pattern variable stands for in a match."""
    ((_, value),) = binding.items()
    return f"[{', '.join(map(_operand, value))}]" if isinstance(value, list) else str(value)
