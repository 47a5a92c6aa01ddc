"""Runs each artifact in a process that loads only the bundle, and finds the cause of a failure.

A step of a plan is one rewrite of the graph by a rule. First, the fused program runs in PyTorch. If it fails there, a
step of its plan is the cause. Then each target runs. If a target fails, it is written again from the captured program
without fusions. If the unfused target fails too, the exporter or runtime of the target is the cause, and the target is
left out. Otherwise a step of the plan is the cause.

The guilty step is found by bisection over the number of executed steps, because steps depend on earlier steps. The
target passes with only the steps before the guilty step, and fails if the guilty step is executed too.

A rule declares the values for which it holds. If a step differs only in a case with finite inputs in which its operands
exceed the rule's `largest`, the step is kept, and the difference is a limit of the artifacts. Later steps must then
compute in this case what the program computes after this step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch

from fuseconv.blaming.values import values_of
from fuseconv.bundle.manifest import LeftOut, Limit, seal
from fuseconv.errors import FileError, FuseconvError, ParityError, UnsupportedError, UpstreamError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import SEARCH, Plan, Step
from fuseconv.parity import process
from fuseconv.parity.cases import Case
from fuseconv.parity.process import Verified
from fuseconv.parity.reference import Reference, tried_of
from fuseconv.parity.report import OutputRow
from fuseconv.parity.verification import compare_case
from fuseconv.pipeline.assembly import Assembly, Written
from fuseconv.program.captured import Program
from fuseconv.proof.guilty import bisect
from fuseconv.rulebook.rule import Domain
from fuseconv.rulebook.rule_text import Call, parse_line
from fuseconv.weights.store import Store

_OURS = ("aten.", "fuseconv.", "prims.")

_Key = tuple[str, str]
"""The names of a case and of an output."""

_CAUSES: Mapping[type[FuseconvError], str] = {UnsupportedError: "unsupported", ParityError: "parity"}


@dataclass(frozen=True)
class Verdict:
    """The cause of a target's failure.

    Attributes:
        guilty: the step of the plan that is the cause. None if no step is the cause.
        why: the failure with this step, in words. Empty if no step is the cause.
        limits: the outputs that differ only for special values, if nothing else is wrong.
        beyond: the outputs that the fused program computes differently in PyTorch because operands exceed the domain of
            a rule, and the domain in words.
        error: the reason why the target is left out. None if it is not left out, or if a step is the cause.
    """

    guilty: Step | None = None
    why: str = ""
    limits: tuple[Limit, ...] = ()
    beyond: Mapping[_Key, str] = field(default_factory=dict)
    error: FuseconvError | None = None


@dataclass(frozen=True)
class Gate:
    """Writes and verifies programs of one conversion, and finds the cause of a failure.

    Attributes:
        assembly: the parts that all bundles of the conversion share.
        references: the expected outputs of the captured program in each case.
        reference: the path of the file with the references.
        non_finite: whether an equivalent form of linear algebra that the search chose may compute other results where
            inputs are NaN, infinite or overflow. Such a difference is a limit of the artifact.
        domains: maps the name of each rule to the values for which the rule holds.
    """

    assembly: Assembly
    references: Sequence[Reference]
    reference: Path
    non_finite: bool = False
    domains: Mapping[str, Domain] = field(default_factory=dict)
    _unfused: dict[str, Verified] = field(default_factory=dict)

    def in_torch(self, plan: Plan, fused: Program) -> Verdict:
        """Compares the fused program with the original in PyTorch.

        Returns:
            The step that makes the results differ, or the differences for operands beyond the domain of a rule. An
            empty verdict if nothing differs, or if the program without steps differs too.
        """
        references, beyond = {one.case.name: one for one in tried_of(self.references)}, dict[_Key, str]()
        first = 0
        while first < len(plan.applied) and (failing := self._failing_in_torch(plan, fused, references.values())):
            names = {row.case for row in failing}

            def fails(count: int, among: Collection[str] = names) -> bool:
                chosen = [references[name] for name in among]
                return bool(self._failing_in_torch(plan, rewrite(self.assembly.program, plan.first(count)), chosen))

            if not first and fails(0):
                break
            count = bisect(first, len(plan.applied), fails)
            step, before = plan.applied[count - 1], rewrite(self.assembly.program, plan.first(count))
            rows = self._failing_in_torch(plan, before, [references[name] for name in names])
            # A row whose figures are NaN could not be compared, for example because an op failed.
            exceeds = {name: self._exceeds(step, references[name].case) for name in {row.case for row in rows}}
            if judged := [row for row in rows if math.isnan(row.row.max_abs) or not exceeds[row.case]]:
                return Verdict(step, f"it gives a different result: {_figures(judged)}")
            domain = f"the rule {step.rule} holds for values up to {self.domains[step.rule].largest:g}"
            beyond |= {(row.case, row.output): domain for row in rows}
            run = _runner(before)
            for name in exceeds:
                references[name] = replace(references[name], original=run(references[name].case))
            first = count
        return Verdict(beyond=beyond)

    def _exceeds(self, step: Step, case: Case) -> bool:
        """Returns whether the inputs of a case are finite and make a step's operands exceed the domain of its rule."""
        domain = self.domains.get(step.rule, Domain())
        finite = all(bool(one.isfinite().all()) for one in case.inputs)
        if case.kind == "ordinary" or domain.largest is None or not finite:
            return False
        exported = self.assembly.program.exported
        known = {node.name for node in exported.graph.nodes}
        names = sorted(known & {name.partition("/")[0] for name in step.reads()})
        values = values_of(exported, case.inputs, names).values()
        tensors = [one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel()]
        return any(bool(one.abs().max() > domain.largest or one.isnan().any()) for one in tensors)

    def _judged(self, plan: Plan) -> tuple[str, ...]:
        """Returns the kinds of cases in which a plan's fused program must agree with the original."""
        excused = self.non_finite and any(step.rule == SEARCH for step in plan.applied)
        return ("ordinary",) if excused else ("ordinary", "special")

    def _failing_in_torch(self, plan: Plan, program: Program, references: Collection[Reference]) -> list[OutputRow]:
        """Returns the rows in which a plan's program, or its beginning, must agree with references but does not."""
        kinds, contract, run = self._judged(plan), program.contract, _runner(program)
        judged = [one for one in references if one.case.kind in kinds]
        rows = [row for one in judged for row in compare_case("torch", contract, one, run)]
        return [row for row in rows if not row.ok]

    def verdict(
        self, target: str, plan: Plan, found: Verified, beyond: Mapping[_Key, str] = MappingProxyType({})
    ) -> Verdict:
        """Finds why a target fails verification.

        Args:
            target: the name of the failing target.
            plan: the plan by which the target's program was fused.
            found: the failed verification result.
            beyond: the outputs that differ in PyTorch too, because operands exceed the domain of a rule.

        Returns:
            The guilty step of the plan, the reason to leave the target out, or the outputs that differ only for special
            values.
        """
        if isinstance(found.error, UnsupportedError) and _brings_ops(plan):
            return Verdict(error=found.error)  # a rule inserts a custom op that the target does not support
        if not plan.applied:
            self._unfused[target] = found
        elif target not in self._unfused:
            self._unfused[target] = self.attempt(target, self.assembly.program)
        unfused = self._unfused[target]
        if found.error is not None:
            if unfused.error is not None:
                return Verdict(error=found.error)
            step = self._step(target, plan, lambda tried: tried.error is not None, None)
            return Verdict(step, f"the target {target} fails with this step: {found.error.what}")
        failing = _keys(found)
        if unfused.error is not None:
            return Verdict(error=_mismatch(target, found, f"without fusions, the target fails: {unfused.error.what}"))
        alike = _keys(unfused)
        if any(key in alike and row.kind == "ordinary" for key, row in failing.items()):
            return Verdict(error=_mismatch(target, found, "they also differ without fusions"))
        kinds = self._judged(plan)
        if ours := {key for key, row in failing.items() if key not in {*alike, *beyond} and row.kind in kinds}:
            rows = [row for key, row in failing.items() if key in ours]
            names = {row.case for row in rows}
            step = self._step(
                target, plan, lambda tried: tried.error is not None or bool(ours & _keys(tried).keys()), names
            )
            return Verdict(step, f"the target {target} gives a different result with this step: {_figures(rows)}")
        return Verdict(limits=tuple(_limit(row, beyond.get(key, "")) for key, row in failing.items()))

    def _step(self, target: str, plan: Plan, fails: Callable[[Verified], bool], cases: Collection[str] | None) -> Step:
        program = self.assembly.program
        count = bisect(
            0,
            len(plan.applied),
            lambda count: fails(self.attempt(target, rewrite(program, plan.first(count)), cases)),
        )
        return plan.applied[count - 1]

    def attempt(self, target: str, program: Program, cases: Collection[str] | None = None) -> Verified:
        """Writes one target of a program into a temporary bundle, verifies it, and returns the result.

        Raises:
            FileError: a file cannot be written.
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "attempt.fuseconv")
            folder.mkdir()
            try:
                return self.write(folder, [target], program, cases)[1][target]
            except FileError:
                raise
            except FuseconvError as error:
                return Verified(error=error)

    def write(
        self,
        folder: Path,
        targets: Sequence[str],
        program: Program,
        cases: Collection[str] | None = None,
        store: Store | None = None,
    ) -> tuple[dict[str, Written], dict[str, Verified]]:
        """Writes targets of a program into a folder and verifies them. Returns the artifacts and results by target.

        Args:
            folder: the folder to write into. It must be empty except for the files of the weight store.
            targets: the names of the targets to write.
            program: the program that the artifacts compute.
            cases: the names of the cases to run. None for all cases.
            store: the weight store to which the artifacts refer. None for artifacts that contain their weights.

        Raises:
            FuseconvError: a target cannot be written.
        """
        libraries = self.assembly.copy_libraries(folder)
        written = {target: self.assembly.write(target, program, folder, store) for target in targets}
        seal(folder, self.assembly.describe(Plan(()), list(written.values()), libraries))
        names = None if cases is None else sorted(cases)
        return written, process.verify(folder, targets, reference=self.reference, cases=names, hashed=True)


def fails(found: Verified) -> bool:
    """Returns whether a target failed verification: it does not run, or an output differs."""
    return found.error is not None or not all(row.ok for row in found.rows)


def failure(found: Verified) -> str:
    """Returns why a target failed verification, in a line."""
    return found.error.what if found.error is not None else _figures(list(_keys(found).values()))


def left_out(target: str, error: FuseconvError, *, by_plan: bool = False) -> LeftOut:
    """Returns the manifest entry for a target that is left out because of an error."""
    cause = "plan" if by_plan else _CAUSES.get(type(error), "upstream")
    return LeftOut.model_validate({"target": target, "cause": cause, "reason": error.what})


def _runner(program: Program) -> Callable[[Case], tuple[torch.Tensor, ...]]:
    """Returns a function that runs a program in PyTorch, and raises UpstreamError if an op fails."""
    module = program.exported.module(check_guards=False)

    def run(case: Case) -> tuple[torch.Tensor, ...]:
        try:
            with torch.no_grad():
                return tuple(module(*(tensor.clone() for tensor in case.inputs)))
        except (RuntimeError, IndexError, ValueError) as error:
            raise UpstreamError(str(error).strip().splitlines()[0]) from error

    return run


def _brings_ops(plan: Plan) -> bool:
    """Returns whether a step calls an op that is neither PyTorch's nor fuseconv's."""
    calls = (parse_line(text).value for step in plan.applied for text in step.replace)
    return any(isinstance(call, Call) and not call.op.startswith(_OURS) for call in calls)


def _keys(found: Verified) -> dict[tuple[str, str], OutputRow]:
    return {(row.case, row.output): row for row in found.rows if not row.ok}


def _limit(row: OutputRow, domain: str) -> Limit:
    reason = f"{row.row.reason}; {domain}" if domain else row.row.reason
    return Limit(target=row.target, case=row.case, output=row.output, reason=reason)


def _figures(rows: Sequence[OutputRow]) -> str:
    first = rows[0]
    return f"case {first.case}, output {first.output}: {first.row.reason}"


def _mismatch(target: str, found: Verified, who: str) -> ParityError:
    failing = list(_keys(found).values())
    return ParityError(
        f"{len(failing)} of {len(found.rows)} outputs differ; first: {_figures(failing)}; {who}",
        where=f"the target {target}",
        fix=f"leave the target {target} out",
    )
