"""Replaces the function transforms in a program, such as `torch.func.vmap`, by ops on whole tensors.

torch.export records that a transform begins and ends, and the ops between with the tensors of one element of the batch.
Such a program depends on the state of torch, the order of its nodes, and nodes without users.
"""

from __future__ import annotations

import warnings

from torch.export import ExportedProgram

_RECORDED = "torch._functorch.predispatch"
"""The module of the functions with which torch.export records transforms."""


def expand_transforms(exported: ExportedProgram) -> ExportedProgram:
    """Returns the program with the ops that its transforms call, or the program itself if it contains no transform."""
    targets = (node.target for node in exported.graph.nodes if node.op == "call_function")
    if all(getattr(target, "__module__", "") != _RECORDED for target in targets):
        return exported
    with warnings.catch_warnings():  # torch itself copies tree specs in a deprecated way
        warnings.filterwarnings("ignore", message=r"`isinstance\(treespec, LeafSpec\)`", category=FutureWarning)
        expanded: ExportedProgram = exported.run_decompositions({})
    return expanded
