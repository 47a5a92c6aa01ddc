"""Computes the values at the borders of a program for one call, and extracts the ops between borders."""

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
"""One way to compute a program, such as PyTorch or a target. Returns the values at the given borders."""


@dataclass(frozen=True)
class Local:
    """The ops just before a border, which take the original's values at the preceding borders as inputs.

    Attributes:
        border: the border.
        before: these ops in the captured program.
        after: these ops in the fused program.
        evidence: the values that the original's ops compute at the border.
    """

    border: Border
    before: Segment
    after: Segment
    evidence: Evidence

    def judge(self, actual: torch.Tensor) -> Row:
        """Compares a value at the border with the original's value."""
        return compare(actual, self.evidence.original, self.evidence.fp64, may_overflow=self.evidence.special)


@dataclass
class Scene:
    """One call of a program and of its fused form.

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
        """Returns the values of the captured program in PyTorch. This method is a stage."""
        return self._known(self._original, borders, float64=False)

    def fp64(self, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the values of the captured program in float64. This method is a stage."""
        return self._known(self._fp64, borders, float64=True)

    def fused(self, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the values of the fused program in PyTorch. This method is a stage."""
        return self.of(self.pair.fused, borders)

    def of(self, fused: Program, borders: Sequence[Border]) -> Mapping[Border, torch.Tensor]:
        """Returns the values of a fused program, which may have other weights, in PyTorch."""
        found = values_of(fused.exported, self.inputs, [border.twin for border in borders])
        return {border: found[border.twin] for border in borders}

    def rows(self, stage: Stage, borders: Sequence[Border]) -> dict[Border, Row]:
        """Compares a stage's values with the original's values. Skips borders that the stage does not return."""
        found, original, fp64 = stage(borders), self.original(borders), self.fp64(borders)
        special = self.reference.case.kind == "special"
        return {
            border: compare(found[border], original[border], fp64[border], may_overflow=special)
            for border in borders
            if border in found
        }

    def overflows(self, borders: Sequence[Border]) -> dict[Border, Row]:
        """Returns a row for each border. The row fails if the original is not finite where float64 is."""
        original, fp64 = self.original(borders), self.fp64(borders)
        return {border: _overflow(original[border], fp64[border]) for border in borders}

    def inside(self, end: Border) -> list[Border]:
        """Returns the borders, none of them an end, between a border and the preceding ends of modules and matches."""
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
        """Returns the original's values at the borders before a border, except for values that its match computes."""
        at = self.pair.borders.index(border)
        earlier = [one for one in self.pair.borders[:at] if not border.match or one.match != border.match]
        return self.original([one for one in earlier if one in among])

    def local(
        self, border: Border, fused: Program | None = None, values: Mapping[Border, torch.Tensor] | None = None
    ) -> Local:
        """Extracts the ops just before a border, and runs them in the original.

        Args:
            border: the border.
            fused: a fused program to use instead of the fused program of the pair.
            values: the original's values that the ops take as inputs. Default: the values at all earlier borders,
                except for values that the match of this border computes.
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
