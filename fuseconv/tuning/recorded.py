"""Converts between choices recorded on the steps of a plan and choices recorded by class in fuseconv.lock.

A step is one rewrite of the graph by a rule. A class is a set of equal matches, such as the matches in equal layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fuseconv.matching.steps import Choice, Plan
from fuseconv.program.captured import Program
from fuseconv.tuning.classes import Classes

Choices = Mapping[str, Mapping[str, Choice]]
"""The choice for each class of matches in each target, as target to class to choice."""


def with_choices(plan: Plan, classes: Classes, choices: Choices) -> Plan:
    """Returns the plan with the choices for each class recorded on all steps of the class.

    Args:
        plan: the plan on whose steps the choices are recorded.
        classes: the classes of the steps that the plan applies.
        choices: maps the name of each target to a dict from the name of a class to the choice for this class.
    """
    names = iter(classes.names)
    steps = []
    for step in plan.steps:
        name = next(names) if step.apply else ""
        of_step = {target: of_target[name] for target, of_target in choices.items() if name in of_target}
        steps.append(replace(step, choices=of_step) if of_step else step)
    return replace(plan, steps=tuple(steps))


def replayed(program: Program, plan: Plan, choices: Choices) -> Plan:
    """Returns a plan with the choices that an earlier conversion recorded, so that nothing is measured again."""
    return with_choices(plan, Classes.of(program, plan), choices) if choices else plan


def recorded(program: Program, plan: Plan) -> dict[str, dict[str, Choice]]:
    """Returns the choices on a plan's steps by target and class, in the format that `replayed` expects."""
    if not any(step.choices for step in plan.applied):
        return {}
    choices: dict[str, dict[str, Choice]] = {}
    for name, step in zip(Classes.of(program, plan).names, plan.applied, strict=True):
        for target, choice in step.choices.items():
            choices.setdefault(target, {})[name] = choice
    return choices
