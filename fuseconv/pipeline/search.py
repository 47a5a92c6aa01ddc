"""Measures which form of a bundle's linear algebra is fastest, and writes the bundle again with the fastest forms.

A region is a subgraph of linear algebra. A form of a region is an algebraically equivalent list of ops. Each form is
tried in the whole model, with every rule that then matches. The model with the form is planned, tested, written and
verified like the bundle itself. Its calls are then timed, interleaved with calls of the model without the form.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from fuseconv.contract.ladder import ladder
from fuseconv.contract.spec import Contract
from fuseconv.errors import ParityError
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import SEARCH, Form, Forms, Plan
from fuseconv.measure.duel import duels
from fuseconv.measure.turns import Duel
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.filling import Filling
from fuseconv.pipeline.tune import units_of
from fuseconv.rulebook.rule import Rule
from fuseconv.searching.kinds import kinds
from fuseconv.tuning.forms import FormChoice

RUNGS = 4
"""The maximum number of combinations of sizes at which forms are compared if dims are dynamic."""

REACH = 64
"""The limit of these sizes. The product of all dims is at most this multiple of the product for the example inputs."""

SECONDS = 3.0
"""The approximate time that is spent on timing each form, in seconds."""

Find = Callable[..., Plan]
"""A function that returns a plan whose steps have been tested. It is called as `find(rejected, forms=...)`."""


def choose_forms(filling: Filling, known: Sequence[Rule], find: Find, progress: Progress) -> Forms:
    """Chooses the forms of regions by timing. Fills the bundle again with the chosen forms, and returns the choices.

    The forms are timed in the targets that are fastest to write. Tuning later measures in which targets the chosen
    forms are faster.

    Args:
        filling: the verified bundle, which is written again with the chosen forms.
        known: the rules that may match after a region is replaced by a form.
        find: computes the plan of the program with given forms.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        The choice for each kind of region, by the text of the region. Regions with the same text, such as equal layers,
        are of one kind. If the regions stay unchanged, the choice contains no ops, and its notes describe the tried
        forms.
    """
    program = filling.assembly.program
    rungs = rungs_of(program.contract, program.examples)
    with progress("search forms"):
        found = kinds(program, filling.plan, known, rungs, filling.tactics)
    forms: dict[str, Form] = {}
    with tempfile.TemporaryDirectory() as scratch:
        sizes = rungs if program.contract.dims() else []
        bench = _Bench(filling, find, units_of(filling.written)[0], sizes, Path(scratch))
        choice = FormChoice(filling.folder, bench.write, bench.race, sizes)
        for at, kind in enumerate(found):
            with progress(f"time forms of region {at + 1} of {len(found)}"):
                forms[kind.text] = choice.best(forms, kind)
    if forms:
        filling.change(partial(find, forms=forms))
    return forms


def rungs_of(contract: Contract, examples: Sequence[torch.Tensor]) -> list[dict[str, int]]:
    """Returns the dim sizes at which forms are compared (the rungs). The first are the sizes of the example inputs."""
    captured = {
        dim.name: dim.value(size) or 1
        for spec, tensor in zip(contract.inputs, examples, strict=True)
        for dim, size in zip(spec.shape, tensor.shape, strict=True)
        if not isinstance(dim, int)
    }
    most = REACH * math.prod(captured.values())
    return [sizes for sizes in ladder(contract, captured) if math.prod(sizes.values()) <= most][:RUNGS]


@dataclass
class _Bench:
    """Writes and times bundles in a temporary folder."""

    filling: Filling
    find: Find
    targets: Sequence[str]
    sizes: Sequence[Mapping[str, int]]
    scratch: Path
    _count: int = 0

    def write(self, forms: Forms) -> Path:
        """Writes and verifies a bundle with the given forms, and returns its folder. The last form is the form to try.

        Raises:
            FuseconvError: the last form is not applied, an output differs, or a target cannot be written or run.
        """
        plan = self.find(self.filling.rejected, forms=forms)
        tried = list(forms.values())[-1]
        if not any(step.rule == SEARCH and step.replace == tried.lines for step in plan.applied):
            why = [miss.reason for miss in plan.misses if miss.rule == SEARCH]
            raise ParityError(why[-1] if why else "an earlier match already uses a part of the region")
        folder = self.scratch / f"{self._count}.fuseconv"
        self._count += 1
        folder.mkdir()
        program = rewrite(self.filling.assembly.program, plan)
        _, verified = self.filling.gate.write(folder, self.targets, program)
        self.filling.check_alike(verified, special=not self.filling.gate.non_finite)
        return folder

    def race(self, base: Path, challengers: Sequence[Path]) -> list[Duel]:
        """Times each challenger against the base with interleaved calls. Returns one result per challenger."""
        return duels(
            base,
            challengers,
            self.targets,
            self.filling.gate.reference,
            seconds=SECONDS,
            threads=torch.get_num_threads(),
            sizes=self.sizes,
        )
