"""The pipeline, to be read aloud: read, capture, plan, rewrite, write, verify.

Nothing happens here but the sequence; every step is one function of its own file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from fuseconv import cpp_runtime, padding, parity, parity_matrix, sources, verification
from fuseconv.assembly import Progress, describe, target_names
from fuseconv.buckets import Buckets
from fuseconv.bundle import SUFFIX, check_replaceable, open_bundle
from fuseconv.capture import Program, capture
from fuseconv.conversion import Conversion
from fuseconv.errors import UsageError
from fuseconv.files import check_text
from fuseconv.filling import Filling
from fuseconv.gate import Gate
from fuseconv.matching import explanation
from fuseconv.matching import lock as locking
from fuseconv.matching.explanation import Explanation
from fuseconv.matching.plan import SiteKey
from fuseconv.matching.plan import plan as make_plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Miss, Plan, read_plan
from fuseconv.parity import Report
from fuseconv.parity_matrix import Matrix
from fuseconv.placement import place
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.own_rules import load_rules
from fuseconv.rulebook.packs import load_ops, op_files
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Options, Subject
from fuseconv.staging import staged
from fuseconv.verify_process import PROCESS


def _silent(step: str) -> AbstractContextManager[None]:  # noqa: ARG001 - Progress's signature
    return nullcontext()


def read_program(
    model: str | Path, options: Options | None = None, progress: Progress = _silent
) -> tuple[Subject, Program]:
    """Reads a model and captures it as a graph.

    Raises:
        FuseconvError: as `sources.read` and `capture.capture` do.
    """
    options = options or Options()
    sources.check_device(options.device)
    with progress("read"):
        subject = sources.read(model, options=replace(options, device="cpu"))
    with progress("capture"):
        return subject, place(capture(subject), options.device)


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
    progress: Progress = _silent,
) -> Plan:
    """Returns the plan that `convert` with the same arguments would execute, having tried that it can be.

    Raises:
        FrozenError: it has other sites than `frozen` says.
        FuseconvError: reading, capturing, matching or executing failed.
    """
    names, known = target_names(target, (options or Options()).device), load_rules(rules, without)
    _check_allowed(allow, known)
    load_ops(op_files(known), options.trust if options else ())
    _, program = read_program(model, options, progress)
    with progress("match"):
        chosen = read_plan(Path(plan)) if plan else _plan(program, known, names, allow)
    with progress("rewrite"):
        rewrite(program, chosen)
    if frozen is not None:
        _check_lock(frozen, bundle_folder(model, output), chosen, program, known)
    return chosen


def _check_allowed(allow: Collection[str], known: Sequence[Rule]) -> None:
    names = sorted({rule.allow for rule in known if rule.allow is not None})
    for name in allow:
        if name not in names:
            fix = f"use one of {', '.join(names)}" if names else "leave it out"
            raise UsageError(f"no rule asks to be allowed by the name {name}", where=f"--allow {name}", fix=fix)


def _check_lock(path: str | Path, folder: Path, chosen: Plan, program: Program, known: Sequence[Rule]) -> None:
    locking.check_lock(Path(path), folder.name, chosen, program, {rule.name for rule in known})


def explain(
    model: str | Path,
    *,
    rules: str | Path | None = None,
    without: Collection[str] = (),
    options: Options | None = None,
    tried: bool = False,
    progress: Progress = _silent,
) -> tuple[Plan, Explanation]:
    """Returns a plan as `match` makes it, and tells rule by rule what it applies, and what it does not and why.

    Args:
        model: as `convert` takes it.
        rules: as `convert` takes them.
        without: names of rules to leave out.
        options: how the model is read.
        tried: whether to try every site on numbers too, as `match` and `convert` do: that takes longer than to find it.
        progress: told of each step.

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


def verify(
    bundle: str | Path,
    *,
    against: str | Path | None = None,
    options: Options | None = None,
    progress: Progress = _silent,
) -> Report:
    """Proves a bundle's parity on this machine, in a process that has the bundle alone.

    Args:
        bundle: the folder.
        against: the original model; by default its outputs are read from the bundle.
        options: how to read `against`; `inputs_file` is then what is tried.
        progress: told of every step.

    Raises:
        UsageError: `against` is another model, or inputs came without it.
        FuseconvError: reading the original failed, or the bundle is damaged or cannot run here.
    """
    PROCESS.start()
    folder = Path(bundle)
    program, inputs = _original(bundle, against, options or Options(), progress)
    with progress("verify"), tempfile.TemporaryDirectory() as scratch:
        manifest = open_bundle(folder)
        references = verification.references_of(folder, manifest, program, inputs)
        reference = None
        if program is not None:
            reference = Path(scratch, parity.REFERENCE)
            parity.write_reference(reference, references, manifest.contract)
        found = PROCESS.verify(folder, sorted(manifest.targets), reference=reference)
        for one in found.values():
            if one.error is not None:
                raise one.error
        return Report(tuple(row for one in found.values() for row in one.rows), parity.untried_of(references))


def verify_runtimes(
    bundle: str | Path,
    *,
    against: str | Path | None = None,
    options: Options | None = None,
    build_runtime: bool = False,
    progress: Progress = _silent,
) -> Matrix:
    """Proves a bundle's parity in every runtime of this machine: `verify` for Python and C++, with and without graphs.

    Args:
        bundle: the folder.
        against: as `verify` takes it.
        options: as `verify` takes them.
        build_runtime: whether to build fuseconv-run, once, where it is to be had no other way.
        progress: told of every step.

    Raises:
        FuseconvError: as `verify` does, or fuseconv-run does not build.
    """
    executable = cpp_runtime.find()
    if executable is None and build_runtime:
        with progress(f"build {cpp_runtime.NAME}"):
            executable = cpp_runtime.build()
    program, inputs = _original(bundle, against, options or Options(), progress)
    return parity_matrix.verify_runtimes(bundle, against=program, inputs=inputs, program=executable, progress=progress)


def _original(
    bundle: str | Path, against: str | Path | None, options: Options, progress: Progress
) -> tuple[Program | None, tuple[torch.Tensor, ...] | None]:
    """Reads the model that a bundle is judged by, and the inputs in the file of the options, where they are given."""
    manifest = open_bundle(Path(bundle))
    if against is None:
        if about := options.flags():
            raise UsageError(f"{about[0]} is about the original model", where=about[0], fix="add --against MODEL")
        return None, None
    _, program = read_program(against, verification.as_converted(manifest, against, options), progress)
    return program, program.examples if options.inputs_file is not None else None


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
    progress: Progress = _silent,
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

    Raises:
        FrozenError: sites are lost or gained; nothing is written.
        ParityError: no artifact computes what the original computes, or a step of `plan` is wrong; or a site or target
            was left out, and `strict` asks for all. Nothing is left behind.
        FuseconvError: reading, capturing, matching, writing or the disk failed.
    """
    names, known = target_names(target, (options or Options()).device), load_rules(rules, without)
    _check_allowed(allow, known)
    others = load_ops(op_files(known), options.trust if options else ())
    folder = bundle_folder(model, output)
    PROCESS.start()  # it imports torch while the model is read
    with staged(folder, check_replaceable) as staging:
        subject, program = read_program(model, options, progress)
        if buckets is not None:
            with progress("buckets"):
                program = padding.prove(program, buckets)
        with progress("match"):
            chosen = read_plan(Path(plan)) if plan else _plan(program, known, names, allow)
        if frozen is not None:
            _check_lock(frozen, folder, chosen, program, known)
        with progress("reference"):
            references = parity.refer(program, parity.cases(program))
            parity.write_reference(staging / parity.REFERENCE, references, program.contract)
        dtype = options.dtype if options else None
        gate = Gate(
            program,
            references,
            staging / parity.REFERENCE,
            others,
            op_files(known),
            lambda chosen, written, libraries: describe(subject, program, chosen, known, written, libraries, dtype),
        )
        replan = None if plan else partial(_plan, program, known, names, allow)
        consented = frozenset(rule.name for rule in known if rule.allow is not None)
        filling = Filling(staging, names, gate, replan, consented, allow_mismatch, progress, chosen)
        manifest, report = filling.fill()
        if frozen is not None and filling.plan is not chosen:
            _check_lock(frozen, folder, filling.plan, program, known)
        written, left = tuple(filling.written.values()), (tuple(manifest.left_out), tuple(manifest.limits))
        done = Conversion(folder, filling.plan, written, *left, report, by_name=bool(target))
        if strict and (error := done.error(strict=True)) is not None:
            raise error
    if lock is not None:
        locking.write_lock(Path(lock), folder.name, locking.sites(done.plan, program))
    return done


def _plan(
    program: Program,
    known: Sequence[Rule],
    names: Sequence[str],
    allow: Collection[str],
    rejected: Mapping[SiteKey, Miss] = MappingProxyType({}),
) -> Plan:
    device = program.contract.device
    return checked_plan(program, known, device=device, targets=names, allow=allow, rejected=rejected)


def bundle_folder(model: str | Path, output: str | Path | None = None) -> Path:
    """Returns the folder a bundle is written to: the one named, or one beside the model.

    Raises:
        UsageError: its path is not UTF-8; or none is named, and the model is read from a stream, as /dev/stdin.
    """
    if output is not None:
        check_text(Path(output))
        return Path(output)
    model = Path(model).absolute()
    if model.parts[1:2] in (("dev",), ("proc",)):
        raise UsageError(f"beside {model} is no place for a bundle", where=str(model), fix="say where with -o FOLDER")
    return model.with_name((model.name if model.is_dir() else model.stem) + SUFFIX)
