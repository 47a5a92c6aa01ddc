"""Runs the conversion pipeline: read, capture, plan, rewrite, write, verify, search and tune.

This module only calls these stages. Each stage is implemented in a module of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from fuseconv.bundle.invocation import Invocation
from fuseconv.bundle.manifest import bundle_folder, check_replaceable
from fuseconv.bundle.staging import staged
from fuseconv.contract.buckets import Buckets
from fuseconv.errors import ParityError
from fuseconv.matching.allowed import check_allowed
from fuseconv.matching.lock import count_matches, write_lock
from fuseconv.matching.steps import NON_FINITE, read_plan
from fuseconv.measure.ways import peers_of
from fuseconv.parity import process
from fuseconv.parity.cases import cases
from fuseconv.parity.padding import prove
from fuseconv.parity.reference import REFERENCE, refer, write_reference
from fuseconv.pipeline.assembly import Assembly, Progress, target_names
from fuseconv.pipeline.blame import blame_failure
from fuseconv.pipeline.conversion import Conversion
from fuseconv.pipeline.filling import Filling
from fuseconv.pipeline.gate import Gate
from fuseconv.pipeline.locked import check_frozen, chosen_in, chosen_of, find_chosen_plan, forms_in, tactics_in
from fuseconv.pipeline.match import find_plan
from fuseconv.pipeline.read import read_program, silent
from fuseconv.pipeline.reproducible import untimed, varying
from fuseconv.pipeline.search import choose_forms
from fuseconv.pipeline.speed import AOTI, check_speed
from fuseconv.pipeline.tune import Tune, measure_choices, tune_of
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.searching.egraph import load_egglog
from fuseconv.sources import Options
from fuseconv.targets import check_known


def convert(
    model: str | Path,
    *,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    target: Sequence[str] = (),
    output: str | Path | None = None,
    options: Options | None = None,
    plan: str | Path | None = None,
    allow: Collection[str] = (),
    allow_mismatch: bool = False,
    strict: bool = False,
    buckets: Buckets | None = None,
    lock: str | Path | None = None,
    frozen: str | Path | None = None,
    entry: str | None = None,
    tune: Tune | None = None,
    search: bool | None = None,
    not_slower_than: Sequence[str] = (),
    self_contained: Sequence[str] = (),
    blame_limit: float = 0,
    reproducible: bool = False,
    invocation: Invocation | None = None,
    progress: Progress = silent,
) -> Conversion:
    """Converts a model to a bundle, and verifies the bundle before moving it to `output`.

    Args:
        model: the source: a model file or a Hugging Face folder.
        rules: the path of a rule file or of a folder of rule files. Default: the rules that come with fuseconv.
        without: the names of rules not to apply.
        target: the names of the targets to write. Default: all targets.
        output: the folder of the bundle. Default: the model's name with the suffix `.fuseconv`, next to the model.
        options: how to read the source, and the specification of its inputs.
        plan: the path of a plan.json to execute. Default: the plan is made by matching the rules.
        allow: the `allow` names of rules that change numerical results and may be applied. The name `non-finite` lets
            the search replace linear algebra by an equivalent form whose result differs where inputs are NaN, infinite
            or overflow. Such a difference is recorded as a limit of the artifact.
        allow_mismatch: whether to keep a bundle that fails the parity check. Its manifest marks it as failing.
        strict: whether to fail, and write nothing, if a match or a target has to be left out.
        buckets: the sizes to which a dim may be rounded up when the bundle runs from CUDA graphs.
        lock: the path of the fuseconv.lock in which to record the matches and the choices, after the bundle is written.
        frozen: the path of a fuseconv.lock. Exactly the matches that it records must be found again. Its choices are
            followed, and nothing is measured.
        entry: the name of the bundle in `lock` and `frozen`. Default: the name of the bundle's folder.
        tune: how much to measure when choosing which matches are replaced in each target: `none`, `quick` or `full`.
            Default: `quick` for a GPU, `none` for a CPU. A `plan` is executed as it is. Unless `none`, the tactics of
            the ops are measured too, as `fuseconv.tune` does.
        search: whether to time equivalent forms of the linear algebra, such as another order of a chain of products.
            Default: only if `tune` is `full`. With `plan` or `frozen`, no forms are searched.
        not_slower_than: the peers against which the fastest target is timed before the bundle replaces `output`:
            `eager`, the original model; `compile`, the original model compiled by torch.compile; `aoti`, the unfused
            program compiled by AOTInductor.
        self_contained: the names of targets whose artifacts contain their weights. The artifacts of other targets
            refer to `weights.safetensors`.
        blame_limit: the time in seconds to spend on finding the cause if the conversion fails parity. 0 for no search.
            The result is stored in the attribute `blame` of the raised error or of the returned conversion.
        reproducible: whether another conversion must produce the same bytes, in each target that supports this. Nothing
            is measured then. The result lists the other targets, with the reasons.
        invocation: how the conversion was called. The manifest records it.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The result of the conversion: the folder, the plan, the artifacts, the targets that were left out and why, the
        limitations of runtimes, and the parity report.

    Raises:
        FrozenError: a match recorded in `frozen` is not found, or a match is found that is not recorded. Nothing is
            written.
        ParityError: the outputs of every target differ from the original model's; or a step of `plan` is wrong; or
            `strict` is set and a match or a target was left out. Nothing is written.
        SlowerError: the fastest target is slower than a peer in `not_slower_than`. Nothing is written.
        FuseconvError: reading, capturing, matching, exporting or writing failed. Nothing is written.

    Examples:
        >>> done = fuseconv.convert("mlp.pt2", target=["export"])
        >>> done.bundle.name, done.report.ok
        ('mlp.fuseconv', True)
    """
    begun, device = time.monotonic(), (options or Options()).device
    if reproducible:
        tune = untimed(tune, search, not_slower_than)
    names, known, how = target_names(target, device), load_rules(rules, without), tune_of(tune, device)
    peers = peers_of(not_slower_than)
    searches = (how == "full" if search is None else search) and plan is None and frozen is None
    if searches:
        load_egglog()
    check_known(self_contained, "--self-contained")
    check_allowed(allow, known)
    others = load_ops(op_files(known), options.trust if options else ())
    folder = bundle_folder(model, output)
    entry = entry or folder.name
    process.prepare()  # imports torch in the server process while this process reads the model
    with staged(folder, check_replaceable) as staging, tempfile.TemporaryDirectory() as scratch:
        subject, program = read_program(model, options, progress)
        if buckets is not None:
            with progress("buckets"):
                program = prove(program, buckets)
        chosen = chosen_in(frozen, entry) if plan is None else None
        forms = forms_in(frozen, entry) if plan is None else {}
        find = partial(find_chosen_plan, program, known, names, allow, chosen, forms=forms)
        with progress("match"):
            first = read_plan(Path(plan)).untested() if plan else find()
        if frozen is not None:
            check_frozen(frozen, entry, first, program, known, chosen)
        with progress("reference"):
            references = refer(program, cases(program))
            write_reference(staging / REFERENCE, references, program.contract)
        dtype = options.dtype if options else None
        assembly = Assembly.of(subject, program, known, others, dtype, self_contained, invocation)
        domains = {rule.name: rule.domain for rule in known}
        gate = Gate(assembly, references, staging / REFERENCE, NON_FINITE in allow, domains)
        consented = frozenset(rule.name for rule in known if rule.allow is not None)
        unfused = Path(scratch, "unfused.fuseconv")
        filling = Filling(staging, names, gate, None if plan else find, consented, allow_mismatch, progress, first)
        filling.times, filling.tactics = how != "none" and frozen is None, tactics_in(frozen, entry)
        filling.frozen = bool(filling.tactics)
        try:
            filling.fill()
        except ParityError as failure:
            if blame_limit > 0:
                failure.blame = blame_failure(filling, blame_limit, progress)
            raise
        if searches:
            forms = choose_forms(filling, known, partial(find_plan, program, known, names, allow), progress)
        if frozen is not None and filling.plan is not first:
            check_frozen(frozen, entry, filling.plan, program, known, chosen)
        if chosen is not None:
            filling.tuned = chosen.tuned
        elif plan is None and frozen is None:
            measure_choices(filling, how, begun, progress, {AOTI: unfused} if AOTI in peers else {})
        manifest, report = filling.seal()
        written, left = tuple(filling.written.values()), (tuple(manifest.left_out), tuple(manifest.limits))
        done = Conversion(folder, filling.plan, written, *left, report, bool(target), filling.tuned, forms=forms)
        if reproducible:
            done = replace(done, varying=varying([one.target for one in written]))
        if blame_limit > 0 and any(isinstance(one, ParityError) for one in filling.lost.values()):
            done = replace(done, blame=blame_failure(filling, blame_limit, progress))
        if strict and (error := done.error(strict=True)) is not None:
            raise error
        if peers:
            found = check_speed(filling, peers, Path(model), options or Options(), unfused, progress)
            done = replace(done, peers=found)
    if lock is not None:
        matches = count_matches(done.plan, program)
        write_lock(Path(lock), entry, matches, chosen_of(done, program), filling.tactics, done.forms)
    return done
