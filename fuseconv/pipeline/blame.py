"""Finds the causes of numerical differences in a bundle, or in the targets of a model."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from fuseconv.blaming.comparison import Bundle, Comparison
from fuseconv.blaming.search import Search
from fuseconv.blaming.verdict import Blame
from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import PLAN, Manifest, open_bundle
from fuseconv.errors import FileError, UnsupportedError, UsageError
from fuseconv.matching.allowed import check_allowed
from fuseconv.matching.steps import read_plan
from fuseconv.parity.cases import cases
from fuseconv.parity.reference import REFERENCE, Reference, read_reference, refer, tried_of
from fuseconv.parity.verification import as_converted
from fuseconv.pipeline.assembly import Progress, target_names
from fuseconv.pipeline.filling import Filling
from fuseconv.pipeline.match import find_plan
from fuseconv.pipeline.original import ARTIFACT, given, read_original
from fuseconv.pipeline.read import read_program, silent
from fuseconv.program.captured import Program
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.runtime.choosing_targets import choose_targets
from fuseconv.runtime.model import check_device, load_libraries
from fuseconv.sources import Options
from fuseconv.weights.table import weights_of_artifact

TIME_LIMIT = 600.0
"""The default time limit of a search in seconds."""


CONVERT_LIMIT = 60.0
"""The time limit in seconds of a search after a failed conversion."""


def blame(
    model: str | Path,
    *,
    against: str | Path | None = None,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    target: Sequence[str] = (),
    options: Options | None = None,
    plan: str | Path | None = None,
    allow: Collection[str] = (),
    output: str | Path | None = None,
    time_limit: float = TIME_LIMIT,
    progress: Progress = silent,
) -> Blame:
    """Finds which rule, op, weight, target or layer makes a result differ from the original model's result.

    Args:
        model: the folder of a bundle, or a model as in `convert`. The targets of a model are written and compared.
        against: the original model of a bundle. Default: the original program and weights stored in the bundle.
        rules: the rules, as in `convert`. Only for a model.
        without: the names of rules not to apply, as in `convert`. Only for a model.
        target: the names of the targets to compare. Default: all targets of the bundle, or all targets that `convert`
            writes.
        options: how to read the model.
        plan: the plan to execute, as in `convert`. Only for a model.
        allow: the `allow` names of rules that may be applied, as in `convert`. Only for a model.
        output: the folder for the scripts that reproduce a difference. Default: no scripts are kept.
        time_limit: the time in seconds after which the search starts no new step.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        One verdict per cause. Also the errors of the original and of the fused program at each border. A border is a
        value that both programs compute.

    Raises:
        UsageError: an argument applies only to a model but a bundle is given, or only to a bundle but a model is given.
        UnsupportedError: the bundle does not contain all weights of the original, and `against` is not given.
        FileError: the output exists and is not a folder.
        FuseconvError: the model or the bundle cannot be read.

    Examples:
        >>> fuseconv.blame("mlp.fuseconv").verdicts
        ()
    """
    folder, options = Path(model), options or Options()
    if output is not None and Path(output).exists() and not Path(output).is_dir():
        raise FileError("the output path is not a folder", where=str(output), fix="choose the path of a folder")
    is_bundle = (folder / MANIFEST).is_file()
    for name, value in (("--rules", rules), ("--no-rule", without), ("--plan", plan), ("--allow", allow)):
        if is_bundle and value:
            what = f"{name} applies only to a model: a bundle contains its plan"
            raise UsageError(what, where=name, fix=f"remove {name}")
    if against is not None and not is_bundle:
        raise UsageError("--against needs a bundle", where="--against", fix="remove --against, or give a bundle")
    with tempfile.TemporaryDirectory() as scratch:
        search = Search(Path(scratch if output is None else output), time_limit)
        compared = (
            _of_bundle(folder.absolute(), search, against, target, options, progress)
            if is_bundle
            else _of_model(folder, search, rules, without, target, options, plan, allow, progress)
        )
        found = compared.blame(progress)
    return found.without_repros("no output folder was given") if output is None else found


def blame_failure(filling: Filling, time_limit: float, progress: Progress) -> Blame:
    """Finds why a conversion's fused program or targets differ from the original model. Writes no scripts.

    Args:
        filling: the unfinished bundle in which targets failed verification.
        time_limit: the time in seconds after which the search starts no new step.
        progress: called with the name of each step; returns a context manager in which the step runs.
    """
    assembly, found = filling.assembly, filling.found
    limits = {(limit.target, limit.case, limit.output) for limit in filling.limits}
    wrong = [row for one in found.values() for row in one.rows if not row.ok]
    names = tuple(dict.fromkeys(row.target for row in wrong if (row.target, row.case, row.output) not in limits))
    with tempfile.TemporaryDirectory() as scratch:
        search = Search(Path(scratch), time_limit, assembly.op_files)
        compared = Comparison(assembly.program, filling.plan, filling.gate.references, names, search)
        return compared.blame(progress).without_repros("`fuseconv blame` writes it")


def _of_model(
    model: Path,
    search: Search,
    rules: str | Path | None,
    without: Collection[str],
    target: Sequence[str],
    options: Options,
    plan: str | Path | None,
    allow: Collection[str],
    progress: Progress,
) -> Comparison:
    names, known = target_names(target, options.device), load_rules(rules, without)
    check_allowed(allow, known)
    load_ops(op_files(known), options.trust)
    _, program = read_program(model, options, progress)
    with progress("match"):
        found = read_plan(Path(plan)) if plan else find_plan(program, known, names, allow)
    with progress("reference"):
        references = refer(program, cases(program))
    search.op_files = op_files(known)
    return Comparison(program, found, references, names, search)


def _of_bundle(
    folder: Path,
    search: Search,
    against: str | Path | None,
    target: Sequence[str],
    options: Options,
    progress: Progress,
) -> Comparison:
    manifest = open_bundle(folder)
    check_device(manifest.contract.device, folder)
    names = choose_targets(manifest, target, folder)
    for name in names:
        load_libraries(folder, manifest, name)
    references = tried_of(read_reference(folder / REFERENCE, manifest.contract))
    options.require_original(against)
    if against is None:
        program = _stored_program(folder, manifest, references)
    else:
        _, program = read_program(against, as_converted(manifest, against, options), progress)
    return Comparison(program, read_plan(folder / PLAN), references, names, search, Bundle(folder, manifest))


def _stored_program(folder: Path, manifest: Manifest, references: Sequence[Reference]) -> Program:
    """Returns the original program of a bundle, with the original weights that the bundle stores.

    Raises:
        UnsupportedError: the bundle does not store all weights of the original.
    """
    exported, tied = read_original(folder, manifest)
    stored = weights_of_artifact(folder / ARTIFACT, manifest.contract.device) or {}
    first = {name: stored.get(name, stored.get(one)) for name, one in tied.items()}
    weights = {name: tensor for name, tensor in first.items() if tensor is not None}
    if missing := [name for name in tied if name not in weights]:
        original = (manifest.invocation.original(folder.parent) if manifest.invocation else None) or "MODEL"
        command = f"fuseconv blame {shlex.quote(str(folder))} --against {original}"
        raise UnsupportedError(
            f"the bundle lacks the original's weight {missing[0]}, which the conversion merged or folded",
            where=str(folder),
            fix=f"compare with the original model: {command}",
        )
    return Program(given(exported, weights), manifest.contract, references[0].case.inputs)
