"""Compares the fused program and each target with the original, and finds the cause of each difference."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from fuseconv.blaming.borders import Pair
from fuseconv.blaming.scene import Scene
from fuseconv.blaming.search import OutOfTimeError, Search, blamed
from fuseconv.blaming.stored import Stored
from fuseconv.blaming.tapped import Artifact
from fuseconv.blaming.through import called, written
from fuseconv.blaming.verdict import Blame, Growth, Verdict
from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.matching.steps import SEARCH, Plan
from fuseconv.numerics.tolerance import Row
from fuseconv.parity.cases import Case
from fuseconv.parity.reference import Reference, tried_of
from fuseconv.parity.verification import compare_case, outputs_of, with_limits
from fuseconv.program.captured import Program
from fuseconv.runtime.model import load_target
from fuseconv.runtime.packages import package_here
from fuseconv.targets import TARGETS

LARGE = "zeros and large"
"""The name of the case whose inputs are zeros and large values. A correct model may overflow in this case."""

MOST_LIMITS = 4
"""The maximum number of failing cases that are examined for one target. The next case is examined only if all previous
differences were limits of the target's runtime."""

Progress = Callable[[str], AbstractContextManager[None]]
"""Called with the name of a step. Returns a context manager in which the step runs."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose artifacts are compared.

    Attributes:
        folder: the folder from which the artifacts are loaded.
        manifest: lists the artifacts, and the differences that are accepted as limits.
    """

    folder: Path
    manifest: Manifest


@dataclass
class Comparison:
    """Compares a fused program and its targets with the original.

    Attributes:
        program: the captured program.
        plan: the plan by which the program is fused.
        references: the inputs of each case, and the original model's outputs for these inputs.
        targets: the names of the targets to compare.
        search: finds the cause of each difference, within a time limit.
        bundle: the bundle whose artifacts are compared. If None, each target's artifact is written for the comparison.
    """

    program: Program
    plan: Plan
    references: Sequence[Reference]
    targets: Sequence[str]
    search: Search
    bundle: Bundle | None = None
    _pairs: dict[str, Pair] = field(default_factory=dict)

    def blame(self, progress: Progress) -> Blame:
        """Compares the fused program and all targets, and returns one verdict per cause of a difference."""
        references = sorted(tried_of(self.references), key=lambda one: one.case.kind == "special")
        scene = Scene(self._pair(self.plan), references[0], self.search.op_files)
        compared: list[str] = []
        unable: dict[str, str] = {}
        with progress("compare fused"):
            verdicts = self._of_model(references)
            wrong = [] if verdicts else self._of_plans(references, verdicts)
        for target in self.targets if not verdicts or wrong else ():
            own = self._pair(self.plan.of(target))
            if own in wrong:
                continue
            try:
                with progress(f"compare {target}"):
                    failing = self._failing(target, own, references)
            except (FuseconvError, OutOfTimeError) as error:
                unable[target] = error.what if isinstance(error, FuseconvError) else str(error)
                continue
            compared.append(target)
            if failing:
                with progress(f"blame {target}"):
                    verdicts += self._of_target(target, own, failing)
        with progress("error growth"):
            growth = _growth(scene)
        return Blame(tuple(_merged(verdicts)), tuple(compared), unable, scene.reference.case.name, growth)

    def _pair(self, plan: Plan) -> Pair:
        """Fuses the program by a plan, and returns both programs as a pair. Plans with equal steps share one pair."""
        key = repr(plan.applied)
        if key not in self._pairs:
            self._pairs[key] = Pair.of(self.program, plan)
        return self._pairs[key]

    def _of_model(self, references: Sequence[Reference]) -> list[Verdict]:
        """Checks the unfused program. Returns one verdict if its outputs are wrong, otherwise an empty list."""
        for reference in references:
            if _overflows(reference) and reference.case.name != LARGE:
                return [self._overflow(reference, ())]
        failing = _failing(self.program, references[:1], _in_torch(self.program)) if self.bundle is not None else []
        detail = "the bundle's program does not compute the bundle's reference outputs; add --against MODEL"
        return [Verdict("weights", (), one.case.name, row=row, detail=detail) for one, row in failing[:1]]

    def _overflow(self, reference: Reference, targets: tuple[str, ...]) -> Verdict:
        scene = Scene(self._pair(Plan(())), reference, self.search.op_files)
        return blamed(partial(self.search.in_model, scene), targets, reference.case.name)

    def _of_plans(self, references: Sequence[Reference], verdicts: list[Verdict]) -> list[Pair]:
        """Runs each target's fused program in PyTorch. Appends a verdict per wrong program; returns the wrong pairs."""
        wrong: list[Pair] = []
        manifest = None if self.bundle is None else self.bundle.manifest
        pairs = {self._pair(self.plan): next(iter(self.targets), "")}
        pairs |= {self._pair(self.plan.of(target)): target for target in self.targets}
        for pair, target in pairs.items():
            # A replacement that the search found may differ for non-finite inputs. The conversion records this.
            searched = any(step.rule == SEARCH for step in pair.plan.applied)
            judged = [one for one in references if one.case.kind == "ordinary" or not searched]
            for reference, row in _failing(self.program, judged, _in_torch(pair.fused), target, manifest)[:1]:
                wrong.append(pair)
                if _overflows(reference):
                    verdicts.append(self._overflow(reference, ()))
                    continue
                find = partial(self.search.in_torch, Scene(pair, reference, self.search.op_files), row)
                verdicts.append(blamed(find, (), reference.case.name, row))
        return wrong

    def _failing(self, target: str, pair: Pair, references: Sequence[Reference]) -> list[tuple[Reference, Row]]:
        """Runs a target in all cases. Returns each case that fails the parity check, with its first failing output.

        Raises:
            FuseconvError: the target cannot be written or loaded.
            OutOfTimeError: the time limit was reached.
        """
        self.search.check_time()
        if self.bundle is not None:
            folder, manifest = self.bundle.folder, self.bundle.manifest
            model = load_target(folder, manifest, target)
            return _failing(self.program, references, partial(outputs_of, model), target, manifest)
        with tempfile.TemporaryDirectory() as scratch:
            path = written(target, replace(pair.fused, original=None), Path(scratch), self.search.op_files)
            runner = TARGETS[target].load(path, self.program.contract.device)
            return _failing(self.program, references, lambda case: called(runner, case.inputs), target)

    def _of_target(self, target: str, pair: Pair, failing: Sequence[tuple[Reference, Row]]) -> list[Verdict]:
        """Returns one verdict per failing case of a target. Stops after the first case that is not a runtime limit."""
        verdicts: list[Verdict] = []
        for reference, row in failing[:MOST_LIMITS]:
            find = partial(self._find, target, Scene(pair, reference, self.search.op_files), row)
            verdicts.append(blamed(find, (target,), reference.case.name, row))
            if not verdicts[-1].limit:
                break
        return verdicts

    def _find(self, target: str, scene: Scene, row: Row) -> Verdict:
        if _overflows(scene.reference):
            return replace(self._overflow(scene.reference, (target,)), targets=(target,))
        if self.bundle is None:
            return self.search.in_target(scene, target, None, row)
        folder = self.bundle.folder
        path = Path(package_here(self.bundle.manifest, target, folder).path)
        if (verdict := self.search.in_weights(scene, target, Stored(folder, path))) is not None:
            return verdict
        artifact = Artifact(target, folder / path, self.program.contract.device)
        return self.search.in_target(scene, target, artifact, row)


def _in_torch(program: Program) -> Callable[[Case], Sequence[torch.Tensor]]:
    module = program.exported.module(check_guards=False)

    def run(case: Case) -> Sequence[torch.Tensor]:
        with torch.no_grad():
            return tuple(module(*(one.clone() for one in case.inputs)))

    return run


def _failing(
    program: Program,
    references: Sequence[Reference],
    run: Callable[[Case], Sequence[torch.Tensor]],
    target: str = "",
    manifest: Manifest | None = None,
) -> list[tuple[Reference, Row]]:
    """Returns each failing case with its first failing output. Limits in the manifest do not count as failures."""

    def guarded(case: Case) -> Sequence[torch.Tensor]:
        try:
            return run(case)
        except (RuntimeError, IndexError, ValueError) as error:
            raise UpstreamError(str(error).strip().splitlines()[0]) from error

    found = []
    for reference in references:
        rows = compare_case(target, program.contract, reference, guarded)
        bad = [row.row for row in (rows if manifest is None else with_limits(rows, manifest)) if not row.ok]
        found += [(reference, row) for row in bad[:1]]
    return found


def _overflows(reference: Reference) -> bool:
    """Returns whether an output for ordinary inputs is non-finite although the float64 reference is finite."""
    return reference.case.kind == "ordinary" and any(
        original.is_floating_point() and bool((~original.isfinite() & fp64.isfinite()).any())
        for original, fp64 in zip(reference.original, reference.fp64, strict=True)
    )


def _merged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Merges verdicts with the same cause, border and detail into one verdict that lists all their targets."""
    merged: dict[object, Verdict] = {}
    for one in verdicts:
        key = (one.cause, one.border, one.detail) if one.border is not None else one
        first = merged.setdefault(key, one)
        if first is not one:
            merged[key] = replace(first, targets=(*first.targets, *one.targets))
    return list(merged.values())


def _growth(scene: Scene) -> tuple[Growth, ...]:
    """Returns the errors of the original and of the fused program in PyTorch, at the end of each module and match."""
    ends = scene.pair.ends
    fp64, original, fused = scene.fp64(ends), scene.rows(scene.original, ends), scene.rows(scene.fused, ends)
    return tuple(Growth(end, _rms(fp64[end]), original[end], fused[end]) for end in ends)


def _rms(values: torch.Tensor) -> float:
    finite = values.double()[values.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
