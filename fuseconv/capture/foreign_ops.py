"""Replaces ops that a model library registers in Python with PyTorch ops, because artifacts run without that library.

The mixture of experts in transformers uses a custom op, which multiplies rows, sorted by expert, by one matrix per
expert. The replacement multiplies every row by every matrix, and selects the result of the row's own expert. This is
correct for every target and every routing, but multiplies the work by the number of experts. With
`config._experts_implementation = "batched_mm"`, the model itself gathers one matrix per row, which is less work for few
rows but requires more memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import GraphModule


def grouped_mm(rows: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    """Multiplies each group of rows by the matrix of the group.

    Args:
        rows: the rows, sorted by group, with the shape [S, K].
        weight: the matrix of each group, with the shape [G, K, N].
        offs: the end index (exclusive) of each group's rows, with the shape [G]. Rows after the last group belong to no
            group.

    Returns:
        [S, N], with zeros for rows that belong to no group.
    """
    at = torch.arange(rows.shape[0], device=rows.device)
    group = (offs.unsqueeze(0) <= at.unsqueeze(1)).sum(1)
    every = torch.matmul(rows, weight)
    last = weight.shape[0] - 1
    own = every.gather(0, group.clamp(max=last).reshape(1, -1, 1).expand(1, -1, weight.shape[2])).squeeze(0)
    return torch.where((group > last).unsqueeze(1), torch.zeros_like(own), own)


_MEANINGS: Mapping[str, Callable[..., Tensor]] = {"transformers::grouped_mm_fallback": grouped_mm}
"""Maps the name of a library's op to a function that computes the same result with PyTorch ops."""


def spell_out(exported: ExportedProgram) -> ExportedProgram:
    """Returns the program with the ops in `_MEANINGS` replaced, or the program itself if it contains none of them."""
    found = {
        node.target: _MEANINGS[node.target._schema.name]
        for module in exported.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.name in _MEANINGS
    }
    if not found:
        return exported
    with warnings.catch_warnings():  # torch itself copies tree specs in a deprecated way
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
        spelled: ExportedProgram = exported.run_decompositions(dict(found))
    return spelled
