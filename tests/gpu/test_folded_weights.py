"""Rules that compute with the weights of a model, on weights that are on the GPU."""

import pytest
import torch
from support import programs
from torch import Tensor, nn

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.own_rules import load_rules

pytestmark = pytest.mark.gpu


class Scaled(nn.Module):
    """A convolution and a linear layer whose results are scaled by numbers, a tensor of rank 0 and one per channel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.randn(8))
        self.register_buffer("rank_0", torch.tensor(0.3))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        x = x + 0.1 * self.first(x)
        x = x + self.rank_0 * self.second(x)
        return (self.linear(x.permute(0, 2, 3, 1)) * self.scale,)


def test_scales_are_folded() -> None:
    torch.manual_seed(0)
    program = programs.capture(Scaled().cuda(), torch.randn(2, 8, 5, 5, device="cuda"))
    found = plan(program, load_rules(), device="cuda", targets=())
    rewritten = rewrite(program, found)
    assert [step.rule for step in found.steps if "scale" in step.rule] == [
        "conv2d-scale",
        "conv2d-scale",
        "linear-scale",
    ]
    (mine,), (original,) = programs.run(rewritten), programs.run(program)
    torch.testing.assert_close(mine, original, rtol=1e-3, atol=1e-3)
