"""The kinds of regions in a program and the forms of each that are worth timing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from fuseconv.matching.graph import Workspace
from fuseconv.matching.regions import Region, ops_of, regions
from fuseconv.matching.rewrite import apply
from fuseconv.matching.steps import SEARCH, Plan
from fuseconv.matching.types import named_dims
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule
from fuseconv.searching.cost import Cost, Problems, Rates, measure_rates
from fuseconv.searching.extraction import GAIN, Candidate, Extraction
from fuseconv.searching.saturation import NODES, SECONDS, saturate

FORMS = 4
"""The largest number of forms of a kind that are timed, beside the region as it is."""

KINDS = 8
"""The largest number of kinds that are searched: those that take longest."""


@dataclass(frozen=True)
class Kind:
    """Regions with the same text, such as equal layers.

    Attributes:
        text: the text.
        count: the number of these regions.
        given: the region as it is.
        candidates: its forms, the most promising first.
        limit: which limit of the search was reached, in words. Empty if every form was found.
    """

    text: str
    count: int
    given: Candidate
    candidates: tuple[Candidate, ...]
    limit: str


def kinds(
    program: Program,
    plan: Plan,
    rules: Sequence[Rule],
    rungs: Sequence[Mapping[str, int]],
    problems: Problems,
    *,
    rates: Callable[[str, torch.dtype], Rates] = measure_rates,
    nodes: int = NODES,
    seconds: float = SECONDS,
    gain: float = GAIN,
) -> list[Kind]:
    """Returns the kinds of regions that have other forms, those first that take longest.

    Args:
        program: the captured program.
        plan: its plan, of which the canonical steps are executed first.
        rules: the rules, of which those of the stage `search` for this device are used.
        rungs: the sizes at which costs are estimated.
        problems: the tactics that were measured.
        rates: measures the rates of a device for a dtype.
        nodes: the limit of the ops of all forms of a region.
        seconds: the limit of the time for a region.
        gain: as in `Extraction.candidates`.
    """
    workspace, device = Workspace(program.exported), program.contract.device
    for step in plan.applied:
        if step.stage == "canonical":
            apply(workspace, step)
    used = [
        rule
        for rule in rules
        if rule.stage == SEARCH and rule.allow is None and (rule.devices is None or device in rule.devices)
    ]
    alike: dict[str, list[Region]] = {}
    for region in list(regions(workspace, ops_of(rules), named_dims(program))):
        alike.setdefault(region.text, []).append(region)
    costs: dict[torch.dtype, Cost] = {}
    spent: dict[str, float] = {}
    for text, (first, *others) in alike.items():
        dtype = first.nodes[0].meta["val"].dtype
        if dtype not in costs:
            costs[dtype] = Cost(program, rungs, rates(device, dtype), problems)
        if any(work.flops for node in first.nodes for work in costs[dtype].work(node)):
            spent[text] = sum(sum(costs[dtype].times(node)) for node in first.nodes) * (1 + len(others))
    found = []
    for text in sorted(spent, key=lambda one: -spent[one])[:KINDS]:
        first = alike[text][0]
        saturated = saturate(workspace, first, used, nodes=nodes, seconds=seconds)
        extraction = Extraction(saturated, costs[first.nodes[0].meta["val"].dtype])
        candidates = tuple(extraction.candidates(FORMS, gain))
        if candidates or saturated.limit:
            found.append(Kind(text, len(alike[text]), extraction.given, candidates, saturated.limit))
    return found
