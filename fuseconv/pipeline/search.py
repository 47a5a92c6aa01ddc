"""Chooses by measuring in which form the linear algebra of a filled bundle is computed, and fills the bundle again.

Each form is tried in the whole model, with every rule that matches then: planned, tested, written and verified as the
bundle itself, and timed in turn with the model as it is.
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
"""The number of sizes at which forms are compared, if sizes are dynamic."""

REACH = 64
"""The largest of these sizes, as a multiple of the size of the example: of the product of its dims."""

SECONDS = 3.0
"""How long each form is timed, in seconds."""

Find = Callable[..., Plan]
"""Computes a tested plan: `find(rejected, forms=...)`."""


def choose_forms(filling: Filling, known: Sequence[Rule], find: Find, progress: Progress) -> Forms:
    """Chooses the forms of regions, and fills the bundle with them if another form is faster.

    The forms are timed in the target that is written fastest. Tuning measures afterwards in which targets they pay.

    Args:
        filling: the verified bundle.
        known: the rules.
        find: computes the plan of the program.
        progress: called with the name of each step.

    Returns:
        The forms that were chosen, and for regions that are left as they are what is known of the others.
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
    """Returns the sizes at which forms are compared, those of the example first. Without dims there is one: none."""
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
    """The bundles that are written only to be timed, in a scratch folder."""

    filling: Filling
    find: Find
    targets: Sequence[str]
    sizes: Sequence[Mapping[str, int]]
    scratch: Path
    _count: int = 0

    def write(self, forms: Forms) -> Path:
        """Writes and verifies the targets with some forms, the last of which is tried.

        Raises:
            FuseconvError: the form computes something else, or a target fails.
        """
        plan = self.find(self.filling.rejected, forms=forms)
        tried = list(forms.values())[-1]
        if not any(step.rule == SEARCH and step.replace == tried.lines for step in plan.applied):
            why = [miss.reason for miss in plan.misses if miss.rule == SEARCH]
            raise ParityError(why[-1] if why else "an earlier match takes part of the region")
        folder = self.scratch / f"{self._count}.fuseconv"
        self._count += 1
        folder.mkdir()
        program = rewrite(self.filling.assembly.program, plan)
        _, verified = self.filling.gate.write(folder, self.targets, program)
        self.filling.check_alike(verified, special=not self.filling.gate.non_finite)
        return folder

    def race(self, base: Path, challengers: Sequence[Path]) -> list[Duel]:
        """Times bundles against a base."""
        return duels(
            base,
            challengers,
            self.targets,
            self.filling.gate.reference,
            seconds=SECONDS,
            threads=torch.get_num_threads(),
            sizes=self.sizes,
        )
