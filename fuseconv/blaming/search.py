"""Finds the cause of a numerical difference: the first conversion stage that differs, and its first differing value.

A program is computed in several stages, each further from the model: in PyTorch in its own dtype, fused in PyTorch,
through a target, and by the artifact in a bundle. Every stage yields values at the borders, which are the values that
the program and its fused form both compute. The cause is the first stage that differs, and the place is the first
border at which it differs. The ops just before this border are then run alone on the original model's values. If
their result differs too, these ops become the repro script. docs/adr/0026-blame.md gives the reasons for this design.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from fuseconv.blaming import repro
from fuseconv.blaming.borders import Border, step_of
from fuseconv.blaming.repro import Script
from fuseconv.blaming.scene import Local, Scene, Stage
from fuseconv.blaming.segment import Segment
from fuseconv.blaming.stored import Stored
from fuseconv.blaming.tapped import Artifact, Tapped, changed_at
from fuseconv.blaming.through import cut, through
from fuseconv.blaming.values import values_of
from fuseconv.blaming.verdict import Cause, Rows, Verdict
from fuseconv.errors import FuseconvError
from fuseconv.numerics.tolerance import Row, compare
from fuseconv.program.captured import Program

TRIES = 4
"""The maximum number of differing borders for which the search runs the ops alone to reproduce the difference."""


class OutOfTimeError(Exception):
    """The time limit was reached."""


@dataclass
class Search:
    """A search for the causes of differences.

    Attributes:
        folder: the folder into which repro scripts are written.
        limit: the time limit of the whole search in seconds. After it, the search starts no new step.
        op_files: Python files that register ops of rule packs.
    """

    folder: Path
    limit: float
    op_files: tuple[Path, ...] = ()
    _begun: float = field(default_factory=time.monotonic)
    _count: int = 0

    def check_time(self) -> None:
        """Raises OutOfTimeError if the time limit was reached."""
        if time.monotonic() - self._begun > self.limit:
            raise OutOfTimeError(f"the time limit of {self.limit:.0f} s was reached")

    def in_model(self, scene: Scene) -> Verdict:
        """Finds where a model overflows whose outputs are finite in float64, but not in the model's dtype."""
        rows, case = scene.overflows(scene.pair.ends), scene.reference.case.name
        if (end := _first(rows)) is None:
            return Verdict("model", (), case)
        border, row = _narrowed(rows, scene.overflows(scene.inside(end)), end)
        local = scene.local(border)
        verdict = Verdict("model", (), case, border, row, rows=tuple(rows.items()))
        return self._shown(verdict, [lambda text: repro.overflow(text, local.before, local.evidence)])

    def in_torch(self, scene: Scene, failing: Row) -> Verdict:
        """Finds the rule or op that makes the fused program differ from the original program in PyTorch."""
        found = self._place(scene, scene.fused, lambda local: local.after.run()[0])
        if found is None:
            return Verdict("unknown", (), scene.reference.case.name, row=failing)
        local, row, rows = found
        cause: Cause = "op" if self._right_by_reference(local) else "rule"
        step = step_of(scene.pair.plan, local.border)
        verdict = Verdict(cause, (), scene.reference.case.name, local.border, row, rows=rows)
        if step is not None:
            verdict = replace(verdict, step=scene.pair.plan.steps.index(step))
        return self._shown(verdict, [lambda text: repro.eager(text, local.before, local.after, local.evidence)])

    def _right_by_reference(self, local: Local) -> bool:
        """Returns whether the fused ops pass if each fuseconv op runs its PyTorch reference instead of its kernel."""
        program = local.after.program(local.evidence.original.device.type)
        (end,) = program.exported.graph.output_node().all_input_nodes
        found = values_of(program.exported, program.examples, [end.name], by_reference=True)
        return local.judge(found[end.name]).ok

    def in_weights(self, scene: Scene, target: str, stored: Stored) -> Verdict | None:
        """Finds where stored weights that differ from the program's change its values. Returns None if nowhere."""
        wrong = stored.wrong(target, scene.pair.fused)
        if not wrong:
            return None
        other = stored.attached(scene.pair.fused, wrong)
        found = self._place(scene, partial(scene.of, other), lambda local: local.after.run()[0], other)
        if found is None:
            return None
        local, row, rows = found
        detail, case = "; ".join(map(str, wrong)), scene.reference.case.name
        verdict = Verdict("weights", (target,), case, local.border, row, detail, rows=rows)
        return self._shown(verdict, [lambda text: repro.eager(text, local.before, local.after, local.evidence)])

    def in_target(self, scene: Scene, target: str, artifact: Artifact | None, failing: Row) -> Verdict:
        """Finds why a target differs from the original although the fused program in PyTorch does not.

        Args:
            scene: the call that shows the difference.
            target: the name of the target.
            artifact: the target's artifact in a bundle. None if no bundle is examined.
            failing: the error of the first output that differs.

        Raises:
            FuseconvError: the target cannot be written or does not run.
            OutOfTimeError: the time limit was reached.
        """
        with Tapped(target, scene.pair.fused, [border.twin for border in scene.pair.ends], self.op_files) as tapped:
            self.check_time()
            found = self._place(scene, self._written(scene, target, tapped), self._alone(target))
            if found is not None:
                return self._of_target(scene, target, *found)
            if artifact is not None and self._is_right(scene, target):
                return self._in_artifact(scene, target, artifact, failing)
        return self._hidden(scene, target, failing)

    def _written(self, scene: Scene, target: str, tapped: Tapped | None = None) -> Stage:
        """Returns a stage that exports the fused program with the borders as outputs, and runs the artifact.

        Args:
            scene: the call to compute.
            target: the name of the target.
            tapped: an artifact that already returns the values at some borders. The stage runs this artifact if exactly
                these borders are requested, instead of a new export.
        """

        def stage(borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
            names = [border.twin for border in borders]
            self.check_time()
            values = (
                tapped.values(scene.inputs)
                if tapped is not None and names == list(tapped.names)
                else through(target, cut(scene.pair.fused, names), scene.inputs, self.op_files)
            )
            return dict(zip(borders, values, strict=True))

        return stage

    def _alone(self, target: str) -> Callable[[Local], torch.Tensor]:
        def run(local: Local) -> torch.Tensor:
            return self._through(target, local.after)

        return run

    def _through(self, target: str, segment: Segment) -> torch.Tensor:
        self.check_time()
        inputs = tuple(segment.inputs.values())
        device = inputs[0].device.type if inputs else "cpu"
        return through(target, segment.program(device), inputs, self.op_files)[0]

    def _is_right(self, scene: Scene, target: str) -> bool:
        """Exports the fused program to the target again, and returns whether the outputs pass the parity check."""
        self.check_time()
        program, reference = scene.pair.fused, scene.reference
        found = through(target, replace(program, original=None), scene.inputs, self.op_files)
        special = reference.case.kind == "special"
        triples = zip(found, reference.original, reference.fp64, strict=True)
        return all(compare(*triple, may_overflow=special).ok for triple in triples)

    def _of_target(self, scene: Scene, target: str, local: Local, row: Row, rows: Rows) -> Verdict:
        """Decides whether upstream tools or fuseconv's export make a target compute ops wrongly."""
        before, evidence = local.before, local.evidence
        same = local.before.ops == local.after.ops
        unfused_differs = same or not local.judge(self._through(target, before)).ok
        case, limit = scene.reference.case.name, unfused_differs and evidence.special
        if unfused_differs:
            verdict = Verdict("upstream", (target,), case, local.border, row, limit=limit, rows=rows)
            shown = self._shown(verdict, [lambda text: repro.upstream(text, target, before, evidence)])
            if shown.repro is not None:
                return shown
            after, detail = (
                before,
                f"the unfused export through fuseconv differs too; the tool without fuseconv: {shown.unshown}",
            )
        else:
            after, detail = local.after, "the unfused ops pass the check in the same target"
        verdict = Verdict("target", (target,), case, local.border, row, detail, limit=limit, rows=rows)
        return self._shown(verdict, [lambda text: repro.through_target(text, target, before, after, evidence)])

    def _in_artifact(self, scene: Scene, target: str, artifact: Artifact, failing: Row) -> Verdict:
        """Finds why a bundle's artifact fails although a newly written artifact passes."""
        case = scene.reference.case.name
        if not artifact.is_readable:
            detail = "a newly written package passes the check; the code of a package cannot be read back"
            return Verdict("artifact", (target,), case, row=failing, detail=detail, unshown="convert the model again")
        borders = scene.pair.borders
        with Tapped(target, scene.pair.fused, [border.twin for border in borders], self.op_files) as tapped:
            return self._in_file(scene, target, artifact, tapped, failing)

    def _in_file(self, scene: Scene, target: str, artifact: Artifact, tapped: Tapped, failing: Row) -> Verdict:
        case, places = scene.reference.case.name, artifact.places(tapped, scene.pair.outputs)
        known = [border for border in scene.pair.borders if places.get(border.twin) is not None]

        def stage(borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
            here = [border for border in borders if border in known]
            wanted = [place for border in here if (place := places[border.twin]) is not None]
            return dict(zip(here, artifact.values(wanted, scene.inputs), strict=True)) if here else {}

        rows = scene.rows(stage, scene.pair.ends)
        if (end := _first(rows)) is None:
            return Verdict("artifact", (target,), case, row=failing, detail=changed_at(artifact, tapped, ""))
        border, row = _narrowed(rows, scene.rows(stage, scene.inside(end)), end)
        place = places[border.twin]
        assert place is not None
        detail = changed_at(artifact, tapped, border.twin)
        verdict = Verdict("artifact", (target,), case, border, row, detail, rows=tuple(rows.items()))
        given = scene.given(border, known)
        starts = {at: tensor for one, tensor in given.items() if (at := places[one.twin]) is not None}
        pieces = (
            (artifact.listing.cut([place], artifact.listing.needed(place, starts)), scene.local(border, values=given)),
            (artifact.listing.cut([place]), scene.local(border, values={})),
        )
        inputs = dict(zip(scene.pair.program.contract.names, scene.inputs, strict=True))
        scripts = [
            partial(repro.of_piece, target=target, piece=piece, inputs=inputs, evidence=local.evidence)
            for piece, local in pieces
        ]
        return self._shown(verdict, scripts)

    def _hidden(self, scene: Scene, target: str, failing: Row) -> Verdict:
        """Bisects a difference that vanishes if all borders are outputs, because outputs prevent compiler fusions."""
        ends, case = scene.pair.ends, scene.reference.case.name
        low, high, row = -1, len(ends) - 1, failing
        stage = self._written(scene, target)
        while high - low > 1:
            middle = (low + high) // 2
            tried = scene.rows(stage, [ends[middle]])[ends[middle]]
            low, high, row = (low, middle, tried) if not tried.ok else (middle, high, row)
        detail = "only in a program that does not return the values before; the place was found by bisection"
        verdict = Verdict("target", (target,), case, ends[high], row, detail)
        whole = scene.local(ends[high], values={})
        script = partial(
            repro.through_target, target=target, before=whole.before, after=whole.after, evidence=whole.evidence
        )
        return self._shown(verdict, [script])

    def _place(
        self, scene: Scene, stage: Stage, alone: Callable[[Local], torch.Tensor], fused: Program | None = None
    ) -> tuple[Local, Row, Rows] | None:
        """Finds the first ops whose result also differs when these ops run alone on the original model's values.

        Args:
            scene: the call that shows the difference.
            stage: the stage whose values differ from the original program's values.
            alone: a function that runs only the given ops, in the same way as the stage, and returns their result.
            fused: a fused program with other weights, to use instead of the fused program of the scene.

        Returns:
            The ops, their error when they run alone, and the errors of the stage at the ends of modules and matches.
            None if no ops differ when they run alone.
        """
        rows = scene.rows(stage, scene.pair.ends)
        for end in list(_failing(rows))[:TRIES]:
            inside = scene.inside(end)
            border, _ = _narrowed(rows, scene.rows(stage, inside) if inside else {}, end)
            for one in dict.fromkeys((border, end)):
                local = scene.local(one, fused)
                row = local.judge(alone(local))
                if not row.ok:
                    return local, row, tuple(rows.items())
        return None

    def _shown(self, verdict: Verdict, attempts: Sequence[Callable[[str], Script | None]]) -> Verdict:
        """Writes and runs scripts until one shows the difference. Returns the verdict with this script.

        If no script shows the difference, the returned verdict gives the reason in `unshown`.

        Args:
            verdict: the verdict without a script.
            attempts: functions that make a script from the verdict's sentence, or return None. They are tried in order.
        """
        self._count += 1
        name, why = "-".join([str(self._count), verdict.cause, *verdict.targets]), "the ops cannot be written as code"
        for attempt in attempts:
            self.check_time()
            script = attempt(verdict.sentence)
            if script is None:
                continue
            path = self.folder / f"{name}.py"
            script.write(path)
            if not (why := repro.why_not(path)):
                return replace(verdict, repro=path)
            path.unlink()
            path.with_suffix(".safetensors").unlink()
        self._count -= 1
        return replace(verdict, unshown=why)


def _failing(rows: Mapping[Border, Row]) -> Iterator[Border]:
    return (border for border, row in rows.items() if not row.ok)


def _first(rows: Mapping[Border, Row]) -> Border | None:
    return next(_failing(rows), None)


def _narrowed(ends: Mapping[Border, Row], inside: Mapping[Border, Row], end: Border) -> tuple[Border, Row]:
    """Returns the first failing border in `inside` and its error, or `end` and its error if none in `inside` fails."""
    border = _first(inside)
    return (end, ends[end]) if border is None else (border, inside[border])


def blamed(search: Callable[[], Verdict], targets: tuple[str, ...], case: str, row: Row | None = None) -> Verdict:
    """Runs a search and returns its verdict. If a time limit or an error stops the search, the cause is `unknown`."""
    try:
        return search()
    except OutOfTimeError as error:
        return Verdict("unknown", targets, case, row=row, detail=str(error))
    except FuseconvError as error:
        return Verdict("unknown", targets, case, row=row, detail=f"the target cannot be examined: {error.what}")
