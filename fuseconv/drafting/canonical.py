"""Creates the canonical graph of a program. Its nodes have the names that `explain` and `match` print."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Node

from fuseconv.errors import UsageError
from fuseconv.matching.graph import Workspace, is_call, is_getitem
from fuseconv.matching.pattern import compile_rule
from fuseconv.matching.plan import is_for, run_stage
from fuseconv.matching.steps import Step
from fuseconv.program.captured import Program
from fuseconv.rulebook.rule import Rule

STAGE = "canonical"


@dataclass(frozen=True)
class Canonical:
    """The graph of a program after the stage `canonical`. Rules of the later stages match in this graph.

    Attributes:
        workspace: the graph with its node names.
        steps: the rewrites that the stage `canonical` applied.
        weights: the model's name of each parameter, buffer and constant, by the name of its placeholder.
    """

    workspace: Workspace
    steps: Sequence[Step]
    weights: Mapping[str, str]

    def node(self, name: str, option: str) -> Node:
        """Returns the node of the op call, or of a result of an op call, that a user named.

        Args:
            name: the name of the node, as `explain` and `match` print it.
            option: the command-line option that gave the name, for an error message.

        Raises:
            UsageError: the canonical graph has no such node, or the node is not an op call.
        """
        found = self._named().get(name) or self.workspace.find(name)
        if found is None or found.op == "output":
            raise self._absent(name, option)
        if not is_call(found) and not is_getitem(found):
            users = ", ".join(self.workspace.name(user) for user in list(found.users)[:3])
            kind = "an input or a weight of the program" if found.op == "placeholder" else "no call of an op"
            fix = f"name an op that uses it: {users}" if users else "name a node that calls an op"
            raise UsageError(f"{name} is {kind}, not an op", where=f"{option} {name}", fix=fix)
        return found

    def _named(self) -> dict[str, Node]:
        return {self.workspace.name(node): node for node in self.workspace.graph.nodes}

    def _absent(self, name: str, option: str) -> UsageError:
        for step in reversed(self.steps):
            if name in step.nodes:
                instead = [self.workspace.find(one) for one in step.results.values()]
                names = ", ".join(self.workspace.name(node) for node in instead if node is not None)
                what = f"{name} is not in the canonical graph: rule {step.rule} replaced it"
                fix = f"name the node that computes it now: {names}" if names else "name a node before or after it"
                return UsageError(what, where=f"{option} {name}", fix=fix)
        near = difflib.get_close_matches(name, [one for one, node in self._named().items() if is_call(node)], n=3)
        fix = f"did you mean {' or '.join(near)}?" if near else "see the names in `fuseconv explain MODEL --all`"
        return UsageError(f"the canonical graph has no node {name}", where=f"{option} {name}", fix=fix)


def canonical(program: Program, rules: Sequence[Rule]) -> Canonical:
    """Applies the rules of the stage `canonical` to a copy of a program's graph, and returns the result.

    Raises:
        RuleError: the rules form a rewrite cycle, or call an op that does not exist.
    """
    workspace = Workspace(program.exported, results=program.results)
    used = [rule for rule in rules if rule.stage == STAGE and is_for(rule, program.contract.device, ())]
    found = list(run_stage(workspace, STAGE, [(rule, compile_rule(rule)) for rule in used]))
    workspace.clean()
    states = {spec.arg.name: spec.target or "" for spec in program.exported.graph_signature.input_specs}
    weights = {name: target for name, target in states.items() if workspace.is_state(workspace.find(name))}
    return Canonical(workspace, tuple(step for step, _ in found if step is not None), weights)
