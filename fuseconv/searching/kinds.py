"""Groups the regions of a program into kinds, such as equal layers, and finds the forms worth timing for each kind."""

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
"""The maximum number of forms of a kind that are timed, in addition to the unchanged region."""

KINDS = 8
"""The maximum number of kinds that are searched: those with the largest estimated time."""


@dataclass(frozen=True)
class Kind:
    """All regions with the same text, such as the same part of equal layers.

    Attributes:
        text: the text that identifies the regions; see regions.py.
        count: the number of regions of this kind.
        given: the form in which the model computes the regions.
        candidates: the other forms that are worth timing, the most promising first.
        limit: the limit at which the search stopped, as text, such as `16 rounds`. Empty if every form was found.
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
    """Returns the kinds of regions that have other forms, or whose search reached a limit, the slowest kinds first.

    Args:
        program: the captured program whose regions are searched.
        plan: the plan of the program. Its canonical steps are executed before the search.
        rules: the rules. Only the rules of the stage `search` for the program's device are used, except rules that
            require `--allow`.
        rungs: the sizes at which costs are estimated. Each rung maps the names of the dims to sizes.
        problems: the measured times of kernel choices (tactics), by problem and size.
        rates: a function that measures the rates of a device for a dtype.
        nodes: the maximum number of ops in all forms of a region together.
        seconds: the maximum time to search one region, in seconds.
        gain: the maximum estimated time of a form, relative to the form in the model; see `Extraction.candidates`.
    """
    workspace, device = Workspace(program.exported, results=program.results), program.contract.device
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
