"""Fills a bundle: rewrites the program, writes and verifies the targets, and repeats without the failing steps.

A step of a plan is one rewrite of the graph by a rule. A tactic is the kernel choice for one problem and size.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuseconv.bundle.files import File
from fuseconv.bundle.manifest import PLAN, LeftOut, Limit, Manifest, seal
from fuseconv.bundle.tuned import Tuned
from fuseconv.errors import FileError, FrozenError, FuseconvError, ParityError, UnsupportedError
from fuseconv.matching.lock import LOCK
from fuseconv.matching.plan import MatchKey
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Miss, Plan
from fuseconv.parity import process
from fuseconv.parity.process import Verified
from fuseconv.parity.reference import uncompared_of, untried_of
from fuseconv.parity.report import Report
from fuseconv.pipeline import gate as gates
from fuseconv.pipeline.assembly import Assembly, Progress, Written, remove_target
from fuseconv.pipeline.gate import Gate, Verdict
from fuseconv.pipeline.original import write_original
from fuseconv.program.captured import Program
from fuseconv.proof.guilty import rejected
from fuseconv.runtime.few_kernels import Problems
from fuseconv.runtime.tactics import FILE, has_tactics, measure, write
from fuseconv.targets import move_weights
from fuseconv.weights.store import Store, weights_of
from fuseconv.weights.table import STORE

ROUNDS = 12
"""The maximum number of plans that are tried. Each plan omits the steps that failed in the previous plan."""

Replan = Callable[[Mapping[MatchKey, Miss]], Plan]
"""A function that returns a new plan without the given matches."""


@dataclass
class Filling:
    """A bundle that is being filled.

    Attributes:
        folder: the folder of the bundle. It already contains the file of reference outputs.
        names: the targets that were requested, by name.
        gate: writes and verifies programs in temporary bundles, and finds the cause of a failure.
        replan: computes a plan without the rejected matches. None if the plan was passed by the user.
        consented: the names of the rules that declare an `allow` name because they change numerical results.
        allow_mismatch: whether to keep artifacts that fail verification.
        progress: called with the name of each step; returns a context manager in which the step runs.
        plan: the plan of the program in the artifacts.
        times: whether to measure the tactics of the targets before the targets are verified.
        tactics: the known tactics. If they come from a lock, they must be complete. Otherwise, measured tactics are
            added.
        frozen: whether the tactics come from a lock.
        written: the artifacts in the folder, by the name of the target.
        lost: maps the name of each target that is left out to its error.
        by_plan: the names of the targets that fail because of the plan, although no further plan may be tried.
        beyond: the outputs that the fused program computes differently in PyTorch because operands exceed the domain of
            a rule, and the domain in words.
        limits: the outputs that a target computes differently for special values.
        found: maps the name of each target to its verification result.
        tuned: the times of the targets. None if they were not measured.
        rejected: maps each match that failed to the reason. A new plan does not contain these matches.
    """

    folder: Path
    names: Sequence[str]
    gate: Gate
    replan: Replan | None
    consented: frozenset[str]
    allow_mismatch: bool
    progress: Progress
    plan: Plan
    times: bool = False
    tactics: Problems = field(default_factory=dict)
    frozen: bool = False
    written: dict[str, Written] = field(default_factory=dict)
    lost: dict[str, FuseconvError] = field(default_factory=dict)
    by_plan: set[str] = field(default_factory=set)
    beyond: Mapping[tuple[str, str], str] = field(default_factory=dict)
    limits: list[Limit] = field(default_factory=list)
    found: dict[str, Verified] = field(default_factory=dict)
    tuned: Tuned | None = None
    _store: Store | None = None
    _libraries: tuple[str, ...] = ()
    rejected: dict[MatchKey, Miss] = field(default_factory=dict)
    _files: Mapping[str, File] = field(default_factory=dict)

    @property
    def assembly(self) -> Assembly:
        """The parts that all bundles of the program share."""
        return self.gate.assembly

    def fill(self) -> None:
        """Writes targets until each is verified or left out.

        Raises:
            FuseconvError: no target is left, or a step failed that the user requested with a plan or --allow.
            FileError: a file cannot be written.
        """
        for last in (*[False] * (ROUNDS - 1), True):
            with self.progress("rewrite"):
                fused = rewrite(self.assembly.program, self.plan)
                in_torch = Verdict() if self.allow_mismatch else self.gate.in_torch(self.plan, fused)
            if in_torch.guilty is not None:
                if last:
                    raise self._wrong_plan(in_torch)
                self._leave_out(in_torch)
                continue
            self.beyond = in_torch.beyond
            self._write(fused)
            if not self._check(last=last) and not self._take_out():
                break
        if not self.written:
            raise _nothing_left(self.lost)

    def _write(self, fused: Program) -> None:
        """Deletes everything but the reference outputs, then writes and verifies all targets that are not left out."""
        for path in self.folder.iterdir():
            if path != self.gate.reference:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.folder / PLAN).write_text(self.plan.to_json(), encoding="utf-8")
        self._libraries = self.assembly.copy_libraries(self.folder)
        self.written, self.found, self.limits = {}, {}, []
        with self.progress("write weights"):
            self._store = Store.create(self.folder, weights_of(fused.exported))
            fused = replace(fused, exported=self._store.attached(fused.exported))
            write_original(self.assembly.program.exported, self.folder, self._store)
        for name in self.names:
            if name not in self.lost:
                with self.progress(f"write {name}"):
                    self._write_one(name, fused)
        if self.written:
            self._run()

    def _write_one(self, name: str, fused: Program) -> None:
        own = self.plan.of(name)
        try:
            program = fused if own == self.plan else rewrite(self.assembly.program, own)
            self.written[name] = self.assembly.write(name, program, self.folder, self._store)
        except FileError:
            raise
        except FuseconvError as error:
            self.found[name] = Verified(error=error)

    def _run(self) -> None:
        manifest = seal(self.folder, self._described())
        if (self.times or self.frozen) and any(has_tactics(manifest, name) for name in self.written):
            with self.progress("measure tactics"):
                self._measure(manifest)
            write(self.folder / FILE, self.tactics)
            manifest = seal(self.folder, manifest, manifest.files)
        self._files = manifest.files
        with self.progress("verify"):
            self.found |= process.verify(self.folder, list(self.written), hashed=True)

    def _measure(self, manifest: Manifest) -> None:
        """Measures the unknown tactics of the targets. Without a lock, failures are reported later, by verification.

        Raises:
            FrozenError: a target fails with the tactics of a lock, perhaps because the lock lacks a tactic.
        """
        names = list(self.written)
        measured = measure(self.folder, manifest, names, known=self.tactics, frozen=self.frozen)
        self.tactics = measured.problems
        if self.frozen and measured.failures:
            target, why = next(iter(measured.failures.items()))
            raise FrozenError(f"the target {target} fails with the lock's tactics: {why}", fix=LOCK)

    def _described(self) -> Manifest:
        return self.assembly.describe(self.plan, list(self.written.values()), self._libraries)

    def _check(self, *, last: bool) -> bool:
        """Leaves out the targets that fail. If steps of the plan are the cause, makes a new plan and returns True.

        On the last round, makes no new plan and returns False.
        """
        wrong: dict[str, Verdict] = {}
        for name, found in self.found.items():
            if not gates.fails(found) or (self.allow_mismatch and found.error is None):
                continue
            if self.allow_mismatch:
                verdict = Verdict(error=found.error)
            else:
                logging.getLogger("fuseconv").info("%s fails verification: %s", name, gates.failure(found))
                with self.progress(f"find the fault in {name}"):
                    verdict = self.gate.verdict(name, self.plan.of(name), found, self.beyond)
            if verdict.guilty is not None:
                wrong[name] = verdict
            elif verdict.error is not None:
                self.lost[name] = verdict.error
            self.limits += verdict.limits
        if wrong and not last:
            for verdict in wrong.values():
                self._leave_out(verdict)
            return True
        self.lost |= {name: self._wrong_plan(verdict) for name, verdict in wrong.items()}
        self.by_plan |= wrong.keys()
        return False

    def _leave_out(self, verdict: Verdict) -> None:
        """Makes a new plan without the rewrite that failed. Raises ParityError if the plan may not be changed."""
        assert verdict.guilty is not None
        if self.replan is None or verdict.guilty.rule in self.consented:
            raise self._wrong_plan(verdict)
        self.rejected |= rejected(self.assembly.program, self.plan, verdict.guilty, verdict.why, self.rejected)
        with self.progress("match"):
            self.plan = self.replan(self.rejected)

    def _wrong_plan(self, verdict: Verdict) -> ParityError:
        assert verdict.guilty is not None
        step, number = verdict.guilty, self.plan.steps.index(verdict.guilty)
        return ParityError(
            f"step {number} of the plan is wrong (rule {step.rule} at {step.nodes[-1]}): {verdict.why}",
            where=f"/steps/{number}",
            fix="leave out the step or its rule, or keep the bundle and mark it as failing with --allow-mismatch",
        )

    def _take_out(self) -> bool:
        """Removes the files of left-out targets. Returns whether a remaining target shared a folder with one."""
        removed = [self.written.pop(name) for name in self.lost if name in self.written]
        for one in removed:
            remove_target(self.folder, one)
        folders = {Path(one.path).parent for one in removed}
        return any(Path(one.path).parent in folders for one in self.written.values())

    def check_alike(self, found: Mapping[str, Verified], *, special: bool = True) -> None:
        """Checks that artifacts of a temporary bundle pass verification, apart from known limits of their targets.

        Args:
            found: the verification results of these artifacts, by the name of the target.
            special: whether to also check the cases with NaN, infinities and the limits of a dtype.

        Raises:
            FuseconvError: an artifact does not run, or one of its outputs differs and this is not a known limit of the
                target.
        """
        for name, one in found.items():
            if one.error is not None:
                raise one.error
            judged = [row for row in one.rows if special or row.kind == "ordinary"]
            wrong = [row for row in judged if not row.ok and (name, row.case, row.output) not in self._limited]
            if wrong:
                what = f"output {wrong[0].output} differs in case {wrong[0].case}: {wrong[0].row.reason}"
                raise ParityError(what, where=f"the target {name}")

    @property
    def _limited(self) -> set[tuple[str, str, str]]:
        return {(limit.target, limit.case, limit.output) for limit in self.limits}

    def exchange(self, source: Path, written: Mapping[str, Written], found: Mapping[str, Verified]) -> None:
        """Replaces the artifacts of some targets with another bundle's artifacts for the same targets.

        Args:
            source: the folder of the other bundle.
            written: the other bundle's artifacts, by the name of the target.
            found: the verification results of these artifacts, by the name of the target.
        """
        for name in written:
            remove_target(self.folder, self.written[name])
        assert self._store is not None
        for name, one in written.items():
            for file in (file for file in one.files if (source / file).is_file() and Path(file).name != STORE):
                (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / file, self.folder / file)
            move_weights(name, self.folder / one.path, self._store, source)
        self.written |= written
        self.found |= found

    def change(self, replan: Replan) -> None:
        """Makes a new plan with `replan`. If its rewrites differ from the current plan's, fills the bundle again.

        Raises:
            FuseconvError: see `fill`.
        """
        self.replan, before = replan, self.plan.steps
        with self.progress("match"):
            self.plan = replan(self.rejected)
        if self.plan.steps == before:
            self.record(self.plan, self.tuned)
        else:
            self.fill()

    def record(self, plan: Plan, tuned: Tuned | None) -> None:
        """Records the times of the targets, and a plan that differs from the current plan only in its choices."""
        self.plan, self.tuned = plan, tuned
        (self.folder / PLAN).write_text(plan.to_json(), encoding="utf-8")
        self._files = {}

    def seal(self) -> tuple[Manifest, Report]:
        """Writes the SBOM, seals the bundle, and returns its manifest and the parity report of the written targets."""
        found = [row for name in sorted(self.written) for row in self.found[name].rows]
        failing = {(row.target, row.case, row.output) for row in found if not row.ok}
        self.limits = [one for one in self.limits if (one.target, one.case, one.output) in failing]
        limited = self._limited
        rows = tuple(replace(row, limit=(row.target, row.case, row.output) in limited) for row in found)
        references, contract = self.gate.references, self.assembly.program.contract
        report = Report(rows, untried_of(references), uncompared_of(references, contract))
        proof = {"parity": report.to_json()["rows"], "mismatch": not report.ok}
        left = {"limits": self.limits, "left_out": self.left_out()}
        manifest = self._described().model_copy(update={**proof, **left, "tuned": self.tuned})
        self.assembly.write_sbom(self.folder)
        return seal(self.folder, manifest, self._files), report

    def left_out(self) -> list[LeftOut]:
        """Returns one manifest entry per target that is left out of the bundle."""
        return [gates.left_out(name, error, by_plan=name in self.by_plan) for name, error in self.lost.items()]


def _nothing_left(lost: Mapping[str, FuseconvError]) -> FuseconvError:
    """Returns the error for a conversion in which every target failed.

    A single target's error is returned as it is. Otherwise, if all targets' errors are of one class, the returned
    error is of this class; if not, it is an UnsupportedError.
    """
    if len(lost) == 1:
        return next(iter(lost.values()))
    kinds = {type(error) for error in lost.values()}
    kind = kinds.pop() if len(kinds) == 1 else UnsupportedError
    reasons = "; ".join(f"{name}: {error.what}" for name, error in lost.items())
    fixes = dict.fromkeys(error.fix for error in lost.values() if error.fix)
    return kind(f"every target failed: {reasons}", where="--target", fix="; ".join(fixes))
