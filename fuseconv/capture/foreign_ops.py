"""Ops that a model library registers in Python, spelled in PyTorch's own: an artifact has to run without that library.

A mixture of experts of transformers multiplies rows, sorted by expert, each by its own matrix, in an op of its own.
Here every row is multiplied by every matrix, and takes the result of its own: right in every target and at every
routing, and as many times the work as there are experts. With `config._experts_implementation = "batched_mm"` the model
itself gathers a matrix for each row, which is less work for few rows, and more memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule


def grouped_mm(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Multiplies groups of rows, each by a matrix of its own.

    Args:
        rows: [S, K], sorted by group.
        weight: [G, K, N].
        offs: [G], where each group ends; rows after the last are in none.

    Returns:
        [S, N]; zeros for rows in no group.
    """
    at = torch.arange(rows.shape[0], device=rows.device)
    group = (offs.unsqueeze(0) <= at.unsqueeze(1)).sum(1)
    every = torch.matmul(rows, weight)
    last = weight.shape[0] - 1
    own = every.gather(0, group.clamp(max=last).reshape(1, -1, 1).expand(1, -1, weight.shape[2])).squeeze(0)
    return torch.where((group > last).unsqueeze(1), torch.zeros_like(own), own)


_MEANINGS: Mapping[str, Callable[..., Tensor]] = {"transformers::grouped_mm_fallback": grouped_mm}
"""The names of such ops, to what they compute."""


def spell_out(exported: ExportedProgram) -> ExportedProgram:
    """Returns a program without such ops; the given one where it has none."""
    found = {
        node.target: _MEANINGS[node.target._schema.name]
        for module in exported.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _MEANINGS
    }
    if not found:
        return exported
    with warnings.catch_warnings():  # torch copies tree specs in a way that it has deprecated
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
        spelled: ExportedProgram = exported.run_decompositions(dict(found))
    return spelled
