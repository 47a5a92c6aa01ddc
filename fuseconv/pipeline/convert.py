"""The pipeline, to be read aloud: read, capture, plan, rewrite, write, verify.

Nothing happens here but the sequence; every step is one function of its own file.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

from fuseconv.bundle.manifest import bundle_folder, check_replaceable
from fuseconv.bundle.staging import staged
from fuseconv.contract.buckets import Buckets
from fuseconv.matching.lock import sites, write_lock
from fuseconv.matching.steps import read_plan
from fuseconv.parity.cases import cases
from fuseconv.parity.padding import prove
from fuseconv.parity.process import PROCESS
from fuseconv.parity.reference import REFERENCE, refer, write_reference
from fuseconv.pipeline.assembly import Progress, describe, target_names
from fuseconv.pipeline.conversion import Conversion
from fuseconv.pipeline.filling import Filling
from fuseconv.pipeline.gate import Gate
from fuseconv.pipeline.match import check_allowed, check_sites, find_plan
from fuseconv.pipeline.read import read_program, silent
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.sources import Options


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
    progress: Progress = silent,
) -> Conversion:
    """Converts a model into a bundle, and proves it before it is put in its place.

    Args:
        model: the source: a file or a Hugging Face folder.
        rules: a rule file or folder; by default the set that comes with fuseconv.
        without: names of rules to leave out.
        target: names of targets; by default all of them.
        output: the bundle's folder; by default the model's name with `.fuseconv`, beside it.
        options: how to read the source, and its inputs.
        plan: a plan.json to execute instead of matching rules.
        allow: names of rules that change numbers and are wanted all the same.
        allow_mismatch: keep, and mark, a bundle that fails parity.
        strict: whether a site or a target that has to be left out is an error; then nothing is written.
        buckets: the sizes that a dim may be rounded up to where the bundle runs from CUDA graphs.
        lock: the fuseconv.lock to write the bundle's sites to, once it is in its place.
        frozen: the fuseconv.lock whose sites the bundle must have, all and no other.
        progress: told of every step.

    Returns:
        The bundle's folder, what was written and what was left out, and the parity of each target.

    Raises:
        FrozenError: sites are lost or gained; nothing is written.
        ParityError: no artifact computes what the original computes, or a step of `plan` is wrong; or a site or target
            was left out, and `strict` asks for all. Nothing is left behind.
        FuseconvError: reading, capturing, matching, writing or the disk failed.

    Examples:
        >>> done = fuseconv.convert("mlp.pt2", target=["export"])
        >>> done.bundle.name, done.report.ok
        ('mlp.fuseconv', True)
    """
    names, known = target_names(target, (options or Options()).device), load_rules(rules, without)
    check_allowed(allow, known)
    others = load_ops(op_files(known), options.trust if options else ())
    folder = bundle_folder(model, output)
    PROCESS.start()  # it imports torch while the model is read
    with staged(folder, check_replaceable) as staging:
        subject, program = read_program(model, options, progress)
        if buckets is not None:
            with progress("buckets"):
                program = prove(program, buckets)
        with progress("match"):
            chosen = read_plan(Path(plan)) if plan else find_plan(program, known, names, allow)
        if frozen is not None:
            check_sites(frozen, folder, chosen, program, known)
        with progress("reference"):
            references = refer(program, cases(program))
            write_reference(staging / REFERENCE, references, program.contract)
        dtype = options.dtype if options else None
        gate = Gate(
            program,
            references,
            staging / REFERENCE,
            others,
            op_files(known),
            lambda chosen, written, libraries: describe(subject, program, chosen, known, written, libraries, dtype),
        )
        replan = None if plan else partial(find_plan, program, known, names, allow)
        consented = frozenset(rule.name for rule in known if rule.allow is not None)
        filling = Filling(staging, names, gate, replan, consented, allow_mismatch, progress, chosen)
        manifest, report = filling.fill()
        if frozen is not None and filling.plan is not chosen:
            check_sites(frozen, folder, filling.plan, program, known)
        written, left = tuple(filling.written.values()), (tuple(manifest.left_out), tuple(manifest.limits))
        done = Conversion(folder, filling.plan, written, *left, report, by_name=bool(target))
        if strict and (error := done.error(strict=True)) is not None:
            raise error
    if lock is not None:
        write_lock(Path(lock), folder.name, sites(done.plan, program))
    return done
