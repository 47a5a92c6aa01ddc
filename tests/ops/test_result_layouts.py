"""The results of pointwise ops have the strides that PyTorch gives them."""

import torch
from support.layouts import layout

from fuseconv import ops


def test_results_have_eagers_layout() -> None:
    """Random layouts: the strides of a sum, and of gated halves, are those that PyTorch gives them."""
    draw = torch.Generator().manual_seed(0)

    def randint(high: int) -> int:
        return int(torch.randint(high, (), generator=draw))

    for _ in range(500):
        rank = 1 + randint(4)
        sizes = [1 + randint(4) for _ in range(rank)]
        operands = []
        for _ in range(2):
            own = [1 if randint(4) == 0 else size for size in sizes]
            order = torch.randperm(rank, generator=draw).tolist()
            value = torch.randn([own[axis] for axis in order]).permute([order.index(axis) for axis in range(rank)])
            operands.append(value.expand(sizes) if randint(3) == 0 else value)
        result, original = ops.add_relu(*operands), torch.relu(operands[0] + operands[1])
        assert layout(result) == layout(original), [(value.shape, value.stride()) for value in operands]
        assert torch.equal(result, original)
        halves = torch.cat(torch.broadcast_tensors(*operands), -1).permute(order).contiguous()
        halves = halves.permute([order.index(axis) for axis in range(rank)])
        assert layout(ops.gated_act(halves, "silu")) == layout(ops.gated_act.reference(halves, "silu"))
