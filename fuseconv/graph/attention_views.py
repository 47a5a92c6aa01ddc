"""Makes a graph independent of the strides of attention's result, which differ between kernels and devices.

PyTorch's kernels return the result of attention in the memory order of heads, of tokens or of the query. torch.export
records `contiguous().view(...)` behind it as a mere view if the kernel of the example needs no copy.
"""

from __future__ import annotations

import torch
from torch.fx import Graph

_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
_VIEW, _RESHAPE = torch.ops.aten.view.default, torch.ops.aten.reshape.default
_MOVES = frozenset({torch.ops.aten.transpose.int, torch.ops.aten.permute.default})


def reshape_attention(graph: Graph) -> None:
    """Replaces views of attention's result by reshapes, which copy where no view exists. Changes the graph in place.

    Args:
        graph: a graph of ATen ops. Views behind transposes and permutations of the result are replaced, too.
    """
    pending = [node for node in graph.nodes if node.target is _ATTENTION]
    while pending:
        for user in pending.pop().users:
            if user.target is _VIEW:
                user.target = _RESHAPE
            elif user.target in _MOVES:
                pending.append(user)
