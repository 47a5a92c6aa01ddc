"""The values of the nodes of a program for one call: in its own dtypes, or in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fuseconv.graph.runner import Runner
from fuseconv.numerics.fp64 import interpret_in_float64
from fuseconv.ops import OPS
from fuseconv.program.graph_copy import copied


def values_of(
    exported: ExportedProgram,
    inputs: tuple[torch.Tensor, ...],
    names: Sequence[str],
    *,
    float64: bool = False,
    by_reference: bool = False,
) -> dict[str, Any]:
    """Returns the values of nodes, which no op overwrites, for one call.

    Args:
        exported: a program in the flat calling convention.
        inputs: one tensor per input.
        names: the names of the nodes: tensors and sizes.
        float64: whether everything is widened to float64, as in the fp64 reference.
        by_reference: whether the plain PyTorch reference of an op of fuseconv is run in place of its kernel.
    """
    graph = copied(exported.graph)
    nodes = {node.name: node for node in graph.nodes}
    end = graph.output_node()
    end.args = (tuple(nodes[name] for name in names),)
    graph.eliminate_dead_code()
    operands = exported._graph_module_flat_inputs(tuple(one.clone() for one in inputs), {})
    module = exported.graph_module
    with torch.no_grad(), same_random_numbers():
        if float64:
            found = interpret_in_float64(module, operands, graph)
        else:
            runner = _ByReference if by_reference else Runner
            found = list(runner(module, graph=graph).run(*operands))
    return dict(zip(names, found, strict=True))


@contextmanager
def same_random_numbers() -> Iterator[None]:
    """Runs the block with random numbers that are the same every time, and restores the state of the RNG."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class _ByReference(Runner):
    """Runs the plain PyTorch reference in place of each op of fuseconv."""

    _references = {op.overload: op.reference for op in OPS}  # noqa: RUF012 - never changed

    def run_node(self, n: Node) -> Any:
        if n.op == "call_function" and n.target in self._references:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), self.env.__getitem__)
            return self._references[n.target](*args, **kwargs)
        return super().run_node(n)
