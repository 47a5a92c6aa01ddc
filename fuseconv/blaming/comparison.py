"""Compares the fused program and each target with the original, and finds what is to blame for each difference."""

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
from fuseconv.blaming.search import Search, blamed
from fuseconv.blaming.stored import Stored
from fuseconv.blaming.tapped import Artifact
from fuseconv.blaming.through import called, written
from fuseconv.blaming.verdict import Blame, Growth, Verdict
from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import FuseconvError
from fuseconv.matching.steps import Plan
from fuseconv.parity.cases import Case
from fuseconv.parity.reference import Reference, tried_of
from fuseconv.parity.report import OutputRow
from fuseconv.parity.verification import compare_case, outputs_of, with_limits
from fuseconv.program.captured import Program
from fuseconv.runtime.model import load_target
from fuseconv.targets import TARGETS

Progress = Callable[[str], AbstractContextManager[None]]
"""Called with the name of a step; the step runs inside the context."""


@dataclass(frozen=True)
class Bundle:
    """A bundle whose artifacts are compared.

    Attributes:
        folder: its folder.
        manifest: its manifest.
    """

    folder: Path
    manifest: Manifest


@dataclass
class Comparison:
    """What is compared.

    Attributes:
        program: the captured program.
        plan: the plan of the fused program.
        references: what the original computes in each case.
        targets: the targets.
        search: finds the causes.
        bundle: the artifacts. None if each target is written.
        op_files: Python files that register ops of rule packs.
    """

    program: Program
    plan: Plan
    references: Sequence[Reference]
    targets: Sequence[str]
    search: Search
    bundle: Bundle | None = None
    op_files: tuple[Path, ...] = ()
    _pairs: dict[str, Pair] = field(default_factory=dict)

    def blame(self, progress: Progress) -> Blame:
        """Returns what is to blame for each difference."""
        verdicts: list[Verdict] = []
        unable: dict[str, str] = {}
        compared: list[str] = []
        references = sorted(tried_of(self.references), key=lambda one: one.case.kind == "special")
        scene = Scene(self._pair(self.plan), references[0], self.op_files)
        with progress("compare fused"):
            overflow = self._of_model(references)
            verdicts += overflow
            wrong = [] if overflow else self._of_plans(references, verdicts)
        for target in self.targets if not overflow else ():
            own = self._pair(self.plan.of(target))
            if own in wrong:
                continue
            with progress(f"compare {target}"):
                try:
                    failing = self._failing(target, own, references)
                except FuseconvError as error:
                    unable[target] = error.what
                    continue
            compared.append(target)
            if failing is not None:
                with progress(f"blame {target}"):
                    verdicts.append(self._of_target(target, own, *failing))
        with progress("error growth"):
            growth = _growth(scene)
        return Blame(tuple(_merged(verdicts)), tuple(compared), unable, scene.reference.case.name, growth)

    def _pair(self, plan: Plan) -> Pair:
        """Returns the program and its fused form. Targets with the same steps share it."""
        key = repr(plan.applied)
        if key not in self._pairs:
            self._pairs[key] = Pair.of(self.program, plan)
        return self._pairs[key]

    def _of_model(self, references: Sequence[Reference]) -> list[Verdict]:
        pair = self._pair(self.plan)
        for reference in references:
            if reference.case.kind == "ordinary" and _overflows(reference):
                verdict = self.search.in_model(Scene(pair, reference, self.op_files))
                return [] if verdict is None else [verdict]
        return []

    def _of_plans(self, references: Sequence[Reference], verdicts: list[Verdict]) -> list[Pair]:
        """Adds the verdicts for the fused programs of the targets, and returns those that are wrong."""
        wrong: list[Pair] = []
        for plan in (self.plan, *map(self.plan.of, self.targets)):
            pair = self._pair(plan)
            if pair in wrong:
                continue
            module = pair.fused.exported.module(check_guards=False)

            def run(case: Case, module: torch.nn.Module = module) -> Sequence[torch.Tensor]:
                with torch.no_grad():
                    return tuple(module(*(one.clone() for one in case.inputs)))

            if (failing := _first_failing("torch", self.program, references, run)) is not None:
                wrong.append(pair)
                reference, row = failing
                scene = Scene(pair, reference, self.op_files)
                find = partial(self.search.in_torch, scene, row.row)
                verdicts.append(replace(blamed(find, "", reference.case.name, row.row), targets=()))
        return wrong

    def _failing(self, target: str, pair: Pair, references: Sequence[Reference]) -> tuple[Reference, OutputRow] | None:
        """Returns the first case and output in which a target differs.

        Raises:
            FuseconvError: the target cannot be written or loaded.
        """
        self.search.check_time()
        if self.bundle is not None:
            folder, manifest = self.bundle.folder, self.bundle.manifest
            model = load_target(folder, manifest, target)
            return _first_failing(target, self.program, references, partial(outputs_of, model), manifest)
        with tempfile.TemporaryDirectory() as scratch:
            path = written(target, replace(pair.fused, original=None), Path(scratch), self.op_files)
            runner = TARGETS[target].load(path, self.program.contract.device)
            return _first_failing(target, self.program, references, lambda case: called(runner, case.inputs))

    def _of_target(self, target: str, pair: Pair, reference: Reference, failing: OutputRow) -> Verdict:
        scene = Scene(pair, reference, self.op_files)

        def find() -> Verdict:
            artifact = None
            if self.bundle is not None:
                path = Path(self.bundle.manifest.targets[target])
                stored = Stored(self.bundle.folder, path)
                if (verdict := self.search.in_weights(scene, target, stored)) is not None:
                    return verdict
                artifact = Artifact(target, self.bundle.folder / path, self.program.contract.device)
            return self.search.in_target(scene, target, artifact, failing.row)

        return blamed(find, target, reference.case.name, failing.row)


def _first_failing(
    name: str,
    program: Program,
    references: Sequence[Reference],
    run: Callable[[Case], Sequence[torch.Tensor]],
    manifest: Manifest | None = None,
) -> tuple[Reference, OutputRow] | None:
    for reference in references:
        rows = compare_case(name, program.contract, reference, run)
        for row in rows if manifest is None else with_limits(rows, manifest):
            if not row.ok:
                return reference, row
    return None


def _overflows(reference: Reference) -> bool:
    return any(
        original.is_floating_point() and bool((~original.isfinite() & fp64.isfinite()).any())
        for original, fp64 in zip(reference.original, reference.fp64, strict=True)
    )


def _merged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Returns the verdicts, with one for those targets that share a cause and a place."""
    merged: dict[object, Verdict] = {}
    for one in verdicts:
        key = (one.cause, one.border, one.detail) if one.border is not None else one
        first = merged.setdefault(key, one)
        if first is not one:
            merged[key] = replace(first, targets=(*first.targets, *one.targets))
    return list(merged.values())


def _growth(scene: Scene) -> tuple[Growth, ...]:
    """Returns the error of the original and of the fused program in PyTorch at each border."""
    ends = scene.pair.ends
    fp64, original, fused = scene.fp64(ends), scene.rows(scene.original, ends), scene.rows(scene.fused, ends)
    return tuple(Growth(end, _rms(fp64[end]), original[end], fused[end]) for end in ends)


def _rms(values: torch.Tensor) -> float:
    finite = values.double()[values.isfinite()]
    return float(finite.square().mean().sqrt()) if finite.numel() else 0.0
