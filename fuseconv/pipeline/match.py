"""Finds where rules apply in a model, which rewrites `convert` would execute, and why other rules do not apply."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from fuseconv.bundle.manifest import PLAN, bundle_folder, open_bundle
from fuseconv.contract.buckets import Buckets
from fuseconv.matching import explanation
from fuseconv.matching.allowed import check_allowed
from fuseconv.matching.explanation import Explanation
from fuseconv.matching.lock import check_lock
from fuseconv.matching.plan import MatchKey
from fuseconv.matching.plan import plan as make_plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import SEARCH, Forms, Miss, Plan, read_plan
from fuseconv.parity.padding import prove
from fuseconv.pipeline.assembly import Progress, check_expressible, target_names
from fuseconv.pipeline.read import read_program, silent
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Options


def match(
    model: str | Path,
    *,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    target: Sequence[str] = (),
    options: Options | None = None,
    plan: str | Path | None = None,
    allow: Collection[str] = (),
    output: str | Path | None = None,
    frozen: str | Path | None = None,
    buckets: Buckets | None = None,
    entry: str | None = None,
    progress: Progress = silent,
) -> Plan:
    """Returns the plan that `convert` would execute with the same arguments. Every step has been tested numerically.

    Raises:
        FrozenError: the matches differ from the lock in `frozen`.
        UnsupportedError: a target that `target` names cannot express the fused program.
        FuseconvError: reading, capturing, matching or executing failed.
    """
    names, known = target_names(target, (options or Options()).device), load_rules(rules, without)
    check_allowed(allow, known)
    load_ops(op_files(known), options.trust if options else ())
    _, program = read_program(model, options, progress)
    if buckets is not None:
        with progress("buckets"):
            program = prove(program, buckets)
    with progress("match"):
        chosen = read_plan(Path(plan)) if plan else find_plan(program, known, names, allow)
    with progress("rewrite"):
        fused = rewrite(program, chosen)
        _check_targets(names if target else (), program, chosen, fused)
    if frozen is not None:
        check_matches(frozen, entry or bundle_folder(model, output).name, chosen, program, known)
    return chosen


def _check_targets(names: Sequence[str], program: Program, plan: Plan, fused: Program) -> None:
    """Checks that each of the targets can express its fused program, as `convert` does before it writes a target."""
    for name in names:
        own = plan.of(name)
        check_expressible(name, fused if own == plan else rewrite(program, own))


def check_matches(path: str | Path, entry: str, chosen: Plan, program: Program, known: Sequence[Rule]) -> None:
    """Checks that the matches of a plan are exactly the matches that a fuseconv.lock records in an entry.

    Raises:
        FrozenError: the matches differ. The error lists the differences.
    """
    check_lock(Path(path), entry, chosen, program, {SEARCH, *(rule.name for rule in known)})


def explain(
    model: str | Path,
    *,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    options: Options | None = None,
    tried: bool = False,
    progress: Progress = silent,
) -> tuple[Plan, Explanation]:
    """Returns the plan of a model, and an explanation of where each rule applies, where it does not, and why.

    Args:
        model: the source, as in `convert`.
        rules: the rule file or folder, as in `convert`.
        without: the names of rules to leave out.
        options: how to read the model.
        tried: whether to test every match numerically, as `match` and `convert` do. The test takes longer than the
            matching.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Raises:
        FuseconvError: reading, capturing or matching failed.
    """
    names, known = target_names(()), load_rules(rules, without)
    load_ops(op_files(known), options.trust if options else ())
    _, program = read_program(model, options, progress)
    with progress("match"):
        find = checked_plan if tried else make_plan
        found = find(program, known, device=program.contract.device, targets=names)
    return found, explanation.explain(found, known)


def explain_bundle(bundle: str | Path, *, rules: str | Path | None = None) -> tuple[Plan, Explanation, tuple[str, ...]]:
    """Returns the plan of a bundle, an explanation of the plan rule by rule, and the names of the bundle's targets.

    Args:
        bundle: the folder of the bundle.
        rules: the rule file or folder that was used for the conversion, as in `convert`.

    Raises:
        RefusedError: the bundle is damaged.
        RuleError: a rule file is invalid.
    """
    folder = Path(bundle)
    targets = tuple(open_bundle(folder).targets)
    plan = read_plan(folder / PLAN)
    return plan, explanation.explain(plan, load_rules(rules), targets), targets


def find_plan(
    program: Program,
    known: Sequence[Rule],
    names: Sequence[str],
    allow: Collection[str],
    rejected: Mapping[MatchKey, Miss] = MappingProxyType({}),
    forms: Forms = MappingProxyType({}),
) -> Plan:
    """Matches the rules, tests every match, and returns the plan with the given forms, without the rejected matches."""
    device = program.contract.device
    return checked_plan(program, known, device=device, targets=names, allow=allow, rejected=rejected, forms=forms)
