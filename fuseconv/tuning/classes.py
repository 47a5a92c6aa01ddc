"""Groups matches into classes of equal rule, operand types and replacement. For example, equal layers form one class.

The name of a class consists of the rule, the dtypes and shapes of the operands, and the replacement. It contains no
node names. Therefore the name is the same in another capture of the model, and fuseconv.lock can record the choice for
a class by its name.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from fuseconv.matching.bindings import from_binding
from fuseconv.matching.graph import Workspace, nodes_in
from fuseconv.matching.rewrite import apply
from fuseconv.matching.steps import Binding, Plan, Step
from fuseconv.matching.types import Dims, named_dims, type_text
from fuseconv.program.captured import Program
from fuseconv.rulebook.refused import Refused

UNKNOWN_SIZE = 64
"""The value that is assumed for a dynamic size when the elements of operands are counted."""


_NAME = re.compile(r"\b\w+\b")


@dataclass(frozen=True)
class Classes:
    """The classes of a plan's steps. A step is one rewrite of the graph by a rule.

    Attributes:
        program: the captured program to which the plan is applied.
        plan: the plan whose steps are grouped. It contains only steps that are applied.
        names: the name of each step's class, in the order of the steps.
        sizes: maps the name of each class to the total number of operand elements of its matches.
    """

    program: Program
    plan: Plan
    names: tuple[str, ...]
    sizes: Mapping[str, int]

    @staticmethod
    def of(program: Program, plan: Plan) -> Classes:
        """Applies a plan to a copy of the program step by step, and returns the classes of the steps."""
        workspace = Workspace(program.exported, trainable=program.trainable, results=program.results)
        dims = named_dims(program)
        names, sizes = [], dict[str, int]()
        for step in plan.applied:
            name = _name(workspace, step, dims)
            names.append(name)
            sizes[name] = sizes.get(name, 0) + _elements(workspace, step)
            apply(workspace, step)
        return Classes(program, replace(plan, steps=plan.applied), tuple(names), sizes)

    @cached_property
    def inserting(self) -> tuple[str, ...]:
        """The names of the classes whose replacement calls an op, the largest first. Other classes only remove ops."""
        found = dict.fromkeys(
            name
            for name, step in zip(self.names, self.plan.steps, strict=True)
            if any("(" in line for line in step.replace)
        )
        return tuple(sorted(found, key=lambda name: -self.sizes[name]))

    @property
    def every(self) -> frozenset[str]:
        """The names of all classes. A plan without these classes leaves the captured program unchanged."""
        return frozenset(self.names)

    def plan_without(self, left: Collection[str]) -> Plan:
        """Returns the plan without the steps of the classes in `left`."""
        steps = zip(self.names, self.plan.steps, strict=True)
        return replace(self.plan, steps=tuple(step for name, step in steps if name not in left))

    def without(self, left: Collection[str]) -> frozenset[str]:
        """Returns the classes in `left` and all classes that depend on those, which must be left out as well."""
        closed = frozenset(left)
        while more := self._unfit(closed):
            closed |= more
        return closed

    def _unfit(self, left: Collection[str]) -> frozenset[str]:
        """Returns the names of classes with a rewrite that cannot be applied without the rewrites of `left`."""
        program, unfit = self.program, set[str]()
        workspace = Workspace(program.exported, trainable=program.trainable, results=program.results)
        for name, step in zip(self.names, self.plan.steps, strict=True):
            if name not in left:
                try:
                    apply(workspace, step)
                except Refused:
                    unfit.add(name)
        return frozenset(unfit)


def _name(workspace: Workspace, step: Step, dims: Dims) -> str:
    def text(binding: Binding) -> str:
        match binding:
            case {"node": str() as name}:
                return type_text(workspace.node(name).meta.get("val"), dims)
            case {"items": list() as items}:
                return f"[{', '.join(map(text, items))}]"
        return json.dumps(next(iter(binding.values())))

    operands = ", ".join(f"{name}: {text(binding)}" for name, binding in step.bindings.items())
    written = f"({operands}) -> {'; '.join(step.replace) or 'nothing'}"
    if any(name == node for name, node in step.results.items()):  # a built-in matcher uses node names as variables
        numbers = {name: f"v{at}" for at, name in enumerate(dict.fromkeys((*step.bindings, *step.results)))}
        written = _NAME.sub(lambda found: numbers.get(found[0], found[0]), written)
    return f"{step.rule}{written}"


def _elements(workspace: Workspace, step: Step) -> int:
    """Returns the total number of elements in the operands of a step. A dynamic size counts as `UNKNOWN_SIZE`."""
    nodes = {node for binding in step.bindings.values() for node in nodes_in(from_binding(binding, workspace.node))}
    shapes = [value.shape for node in nodes if isinstance(value := node.meta.get("val"), torch.Tensor)]
    return sum(math.prod(size if isinstance(size, int) else UNKNOWN_SIZE for size in shape) for shape in shapes)
