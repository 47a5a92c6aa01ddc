"""Computes intermediate values of a program for one call, in the program's own dtypes or in float64."""

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
    """Runs a program for one call, and returns the values of some nodes by name.

    Args:
        exported: a program in the flat calling convention.
        inputs: one tensor per input of the program.
        names: the nodes whose values are returned. The values may be tensors or sizes, and no op may overwrite them.
        float64: whether to compute in float64, as for the float64 reference.
        by_reference: whether to run the PyTorch reference of each fuseconv op instead of its kernel.
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
    """Runs the `with` block with a fixed random seed, and restores the state of the CPU RNG afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


class _ByReference(Runner):
    """Interprets a graph, and runs the PyTorch reference of each fuseconv op instead of its kernel."""

    _references = {op.overload: op.reference for op in OPS}  # noqa: RUF012 - never changed

    def run_node(self, n: Node) -> Any:
        if n.op == "call_function" and n.target in self._references:
            args, kwargs = torch.fx.map_arg((n.args, n.kwargs), self.env.__getitem__)
            return self._references[n.target](*args, **kwargs)
        return super().run_node(n)
