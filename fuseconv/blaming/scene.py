"""Computes the values at the borders of a program for one call, and extracts the ops between borders.

A border is a tensor that both a captured program and its fused form compute. An end is a border that is the result of a
module, of a match or of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fuseconv.blaming.borders import Border, Pair
from fuseconv.blaming.repro import Evidence
from fuseconv.blaming.segment import Segment, between
from fuseconv.blaming.values import same_random_numbers, values_of
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.numerics.tolerance import Row, compare, incomparable
from fuseconv.parity.reference import Reference
from fuseconv.program.captured import Program

Stage = Callable[[Sequence[Border]], Mapping[Border, torch.Tensor]]
"""A function that computes a program in one way, for example in PyTorch or through a target, and returns the values at
the given borders. It may leave out borders whose values it cannot return."""


@dataclass(frozen=True)
class Local:
    """The ops just before a border, with the original program's values at the preceding borders as inputs.

    Attributes:
        border: the border whose value the ops compute.
        before: the ops in the captured program.
        after: the ops in the fused program.
        evidence: the expected values at the border, in the model's own dtype and in float64.
    """

    border: Border
    before: Segment
    after: Segment
    evidence: Evidence

    def judge(self, actual: torch.Tensor) -> Row:
        """Compares a value computed for the border with the expected values, and returns the error."""
        return compare(actual, self.evidence.original, self.evidence.fp64, may_overflow=self.evidence.special)


@dataclass
class Scene:
    """One call of a program and of its fused form, with the values at their borders.

    Attributes:
        pair: the program and its fused form.
        reference: the inputs of the call, and the outputs that the original computes for them.
        op_files: Python files that register ops of rule packs.
    """

    pair: Pair
    reference: Reference
    op_files: tuple[Path, ...] = ()
    _original: dict[Border, torch.Tensor] = field(default_factory=dict)
    _fp64: dict[Border, torch.Tensor] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        """The inputs of the call."""
        return self.reference.case.inputs

    def original(self, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the captured program's values at the borders, computed in PyTorch. This method is a `Stage`."""
        return self._known(self._original, borders, float64=False)

    def fp64(self, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the captured program's values at the borders, computed in float64. This method is a `Stage`."""
        return self._known(self._fp64, borders, float64=True)

    def fused(self, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the fused program's values at the borders, computed in PyTorch. This method is a `Stage`."""
        return self.of(self.pair.fused, borders)

    def of(self, fused: Program, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the values at the borders of a given fused program, whose weights may differ, computed in PyTorch."""
        found = values_of(fused.exported, self.inputs, [border.twin for border in borders])
        return {border: found[border.twin] for border in borders}

    def rows(self, stage: Stage, borders: Sequence[Border]) -> dict[Border, Row]:
        """Compares a stage's values with the original's. Returns one error per border that the stage computes."""
        found, original, fp64 = stage(borders), self.original(borders), self.fp64(borders)
        special = self.reference.case.kind == "special"
        return {
            border: compare(found[border], original[border], fp64[border], may_overflow=special)
            for border in borders
            if border in found
        }

    def overflows(self, borders: Sequence[Border]) -> dict[Border, Row]:
        """Returns one row per border, which fails if an element is finite in float64 but not in the model's dtype."""
        original, fp64 = self.original(borders), self.fp64(borders)
        return {border: _overflow(original[border], fp64[border]) for border in borders}

    def inside(self, end: Border) -> list[Border]:
        """Returns the borders between `end` and the preceding ends. The ends themselves are not included."""
        known = {border.node for border in self.pair.ends if border is not end}
        nodes = {node.name: node for node in self.pair.program.exported.graph.nodes}
        seen, queue = {end.node}, [end.node]
        while queue:
            for operand in nodes[queue.pop()].all_input_nodes:
                if operand.name not in seen and operand.name not in known:
                    seen.add(operand.name)
                    queue.append(operand.name)
        return [border for border in self.pair.borders if border.node in seen and not border.ends]

    def given(self, border: Border, among: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the original's values at the borders in `among` before `border`, without values of the same match."""
        at = self.pair.borders.index(border)
        earlier = [one for one in self.pair.borders[:at] if not border.match or one.match != border.match]
        return self.original([one for one in earlier if one in among])

    def local(
        self, border: Border, fused: Program | None = None, values: Mapping[Border, torch.Tensor] | None = None
    ) -> Local:
        """Extracts the ops just before a border from both programs, and computes the expected values.

        Args:
            border: the border whose value the ops compute.
            fused: a fused program to use instead of the pair's fused program. None to use the pair's.
            values: the original program's values that are the inputs of the ops. Default: the values at all earlier
                borders, except for values that the match of this border computes.
        """
        given = self.given(border, self.pair.borders) if values is None else values
        before = between(
            self.pair.program.exported, self.inputs, {one.node: tensor for one, tensor in given.items()}, [border.node]
        )
        after = between(
            (fused or self.pair.fused).exported,
            self.inputs,
            {one.twin: tensor for one, tensor in given.items()},
            [border.twin],
        )
        with same_random_numbers(), torch.no_grad():
            (original,) = before.run()
            (fp64,) = interpret_in_float64(before.module, [one.clone() for one in before.inputs.values()])
        special = self.reference.case.kind == "special"
        return Local(border, before, after, Evidence(original, fp64, special, self.op_files))

    def _known(
        self, known: dict[Border, torch.Tensor], borders: Sequence[Border], *, float64: bool
    ) -> Mapping[Border, torch.Tensor]:
        missing = [border for border in borders if border not in known]
        if missing:
            names = [border.node for border in missing]
            found = values_of(self.pair.program.exported, self.inputs, names, float64=float64)
            known.update({border: found[border.node] for border in missing})
        return {border: known[border] for border in borders}


def _overflow(original: torch.Tensor, fp64: torch.Tensor) -> Row:
    if not original.is_floating_point():
        return Row(True, 0.0, 0.0, 0.0, 0.0)
    wrong = ~original.isfinite() & fp64.isfinite()
    if not bool(wrong.any()):
        return Row(True, 0.0, 0.0, 0.0, 0.0)
    largest = float(fp64[wrong].abs().max())
    return incomparable(
        f"{int(wrong.sum())} of {wrong.numel()} elements are not finite in {original.dtype}, but at most {largest:.3g} "
        "in float64"
    )
