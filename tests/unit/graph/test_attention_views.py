"""Graphs with a view of attention's result, run by kernels that return it in several memory orders."""

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from fuseconv.graph.attention_views import reshape_attention

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default


class OtherKernel(fx.Interpreter):
    """Returns the result of attention in the memory order of these dims."""

    def __init__(self, module: fx.GraphModule, order: list[int]) -> None:
        super().__init__(module)
        self.order = order

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        result = super().call_function(target, args, kwargs)
        if target is not ATTENTION:
            return result
        return result.permute(self.order).contiguous().permute([self.order.index(dim) for dim in range(4)])


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [0, 2, 1, 3], [2, 0, 1, 3]])
@pytest.mark.parametrize(
    ("move", "shape"),
    [((aten.permute.default, [2, 0, 1, 3]), [10, 8]), ((aten.transpose.int, 1, 2), [2, 5, 8])],
    ids=["tokens first", "images first"],
)
def test_a_result_in_any_memory_order(move: tuple[Any, ...], shape: list[int], order: list[int]) -> None:
    graph = fx.Graph()
    heads = graph.placeholder("heads")
    y = graph.call_function(ATTENTION, (heads, heads, heads))
    moved = graph.call_function(move[0], (y, *move[1:]))
    graph.output(graph.call_function(aten.view.default, (moved, shape)))
    reshape_attention(graph)
    x = torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(0))
    expected = move[0](F.scaled_dot_product_attention(x, x, x), *move[1:]).reshape(shape)
    torch.testing.assert_close(OtherKernel(fx.GraphModule({}, graph), order).run(x), expected)
