"""The ledger: where it copies the ops of a step."""

from __future__ import annotations

import torch
from support import programs
from torch import Tensor, nn
from torch.export import Dim

from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule


class Neighbors(nn.Module):
    """Gathers rows by index, as DGCNN does. A size is computed between the first user of a match and its last op."""

    def forward(self, x: Tensor) -> Tensor:
        b, d, n = x.shape
        index = torch.matmul(x.transpose(2, 1), x).topk(k=4, dim=-1)[1]
        index = (index + torch.arange(0, b).view(-1, 1, 1) * n).view(-1)
        return x.transpose(2, 1).contiguous().view(b * n, -1)[index, :].view(b, n, 4, d)


def test_a_matched_op_may_read_a_size_that_is_computed_behind_the_replacement(
    canonical_rules: tuple[Rule, ...],
) -> None:
    program = programs.capture(Neighbors(), torch.randn(2, 3, 16), dims=({0: Dim("b", min=2, max=16)},))
    plan = checked_plan(program, canonical_rules, device="cpu", targets=())
    assert "views" in {step.rule for step in plan.steps}
    assert not plan.rejected
