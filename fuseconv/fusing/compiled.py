"""What the backend of torch.compile fused and missed, graph by graph."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from fuseconv.matching.steps import Plan

logger = logging.getLogger("fuseconv")


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that torch.compile compiled with the backend fuseconv.

    Attributes:
        name: Dynamo's number of the graph, such as `0/1`: the function, and how often it had been compiled before.
        where: the line of the model that calls the first op of the graph, as `file:line in function`.
        plan: the fusions that were applied, and the near misses with their reasons.
        left_alone: why no rule was applied to the graph. Empty if rules were applied.
        seconds: the time that tracing, matching and testing took, in seconds, without the compilation that follows.
    """

    name: str
    where: str
    plan: Plan
    left_alone: str
    seconds: float

    def report(self) -> None:
        """Logs the graph with the logger `fuseconv`: matches as INFO, near misses as DEBUG, anomalies as WARNING."""
        place = f"graph {self.name} at {self.where}"
        if self.left_alone:
            logger.warning("%s is compiled without fusion: %s", place, self.left_alone)
            return
        for miss in self.plan.rejected:
            logger.warning("%s: rule %s was not applied at %s: %s", place, miss.rule, miss.node, miss.reason)
        counts = ", ".join(f"{rule} {count}" for rule, count in self.plan.counts().items()) or "nothing"
        logger.info("%s: fused %s; %d misses; %.1f s", place, counts, len(self.plan.misses), self.seconds)
        for miss in self.plan.misses:
            logger.debug("%s: rule %s misses at %s: %s", place, miss.rule, miss.node, miss.reason)


_COMPILED: list[CompiledGraph] = []


def record(graph: CompiledGraph) -> None:
    """Appends a graph to those that `compiled_graphs` returns, and logs it."""
    _COMPILED.append(graph)
    graph.report()


def compiled_graphs(forget: bool = False) -> tuple[CompiledGraph, ...]:
    """Returns the graphs that torch.compile has compiled with the backend fuseconv in this process, in order.

    A graph break gives several graphs, and a recompilation gives one more.

    Args:
        forget: whether to remove the graphs, so that the next call returns later graphs only.

    Returns:
        One record per graph, with its plan.

    Examples:
        >>> layers = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
        >>> compiled = torch.compile(layers, backend=fuseconv.dynamo_backend, options={"inner": "eager"})
        >>> y = compiled(torch.zeros(2, 8))
        >>> fuseconv.compiled_graphs()[-1].plan.counts()
        {'linear-act': 1}
    """
    found = tuple(_COMPILED)
    if forget:
        del _COMPILED[: len(found)]
    return found
