"""Measures in which form to compute the linear algebra of a filled bundle, and fills the bundle again.

A region is a subgraph of linear algebra. A form of a region is an algebraically equivalent list of ops. Each form is
tried in the whole model, with every rule that then matches. The model with the form is planned, tested, written and
verified like the bundle itself, and timed in turn with the model without the form.
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
"""The maximum number of sizes at which forms are compared if dims are dynamic."""

REACH = 64
"""The limit of these sizes: the product of the dims is at most this multiple of the product for the example inputs."""

SECONDS = 3.0
"""How long each form is timed, in seconds."""

Find = Callable[..., Plan]
"""Computes a plan whose steps have been tested. It is called as `find(rejected, forms=...)`."""


def choose_forms(filling: Filling, known: Sequence[Rule], find: Find, progress: Progress) -> Forms:
    """Chooses the forms of regions, and fills the bundle with them if another form is faster.

    The forms are timed in the targets that are fastest to write. Tuning then measures in which targets the forms pay.

    Args:
        filling: the verified bundle.
        known: the rules.
        find: computes the plan of the program.
        progress: called with the name of each step.

    Returns:
        The choice for each kind of regions, which are regions with the same text, such as equal layers. If the regions
        stay as they are, the choice has no lines, and its notes describe the forms that were tried.
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
    """Returns the sizes of the dims at which forms are compared. The sizes of the example inputs come first."""
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
    """Writes bundles into a scratch folder, only to time them."""

    filling: Filling
    find: Find
    targets: Sequence[str]
    sizes: Sequence[Mapping[str, int]]
    scratch: Path
    _count: int = 0

    def write(self, forms: Forms) -> Path:
        """Writes and verifies the targets with some forms, and returns the folder. The last form is on trial.

        Raises:
            FuseconvError: the last form computes something else or is not applied, or a target fails.
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
        """Times each challenger in turn with the base."""
        return duels(
            base,
            challengers,
            self.targets,
            self.filling.gate.reference,
            seconds=SECONDS,
            threads=torch.get_num_threads(),
            sizes=self.sizes,
        )
