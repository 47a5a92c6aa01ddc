"""In-place ops on tensors that nothing reads, such as the first weights of a layer that is made in `forward`."""

from pathlib import Path

import pytest
import torch
from support import programs
from torch import nn

from fuseconv.capture.capture import capture
from fuseconv.errors import UnsupportedError
from fuseconv.graph.nodes import is_call, op_name
from fuseconv.sources import read


class MadeInForward(nn.Module):
    """A layer that is made in each call, and given weights in place of its random ones, which `reads` returns."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.own, self.reads = nn.Linear(4, 4), reads

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        layer = nn.Linear(4, 4)
        random = (layer.weight.detach().clone(),) if self.reads else ()
        layer.weight, layer.bias = self.own.weight, self.own.bias
        return (layer(x), *random)


@pytest.mark.parametrize("reads", [False, True])
def test_random_numbers_that_nothing_reads_are_not_generated(reads: bool, tmp_path: Path) -> None:
    model, x = MadeInForward(reads).eval(), torch.ones(3, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "model.pt2")
    if reads:
        with pytest.raises(UnsupportedError, match=r"aten.uniform_.default generates random numbers"):
            capture(read(tmp_path / "model.pt2"))
        return
    program = capture(read(tmp_path / "model.pt2"))
    assert [op_name(node.target) for node in program.exported.graph.nodes if is_call(node)] == ["aten.linear.default"]
    torch.testing.assert_close(programs.run(program)[0], model(x)[0])
