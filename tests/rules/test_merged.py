"""Products of one input become one product: the experts and gates of a mixture."""

import pytest
import torch
from support import programs
from torch import Tensor, nn

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.rule import Rule


class Experts(nn.Module):
    """Experts whose outputs are weighted by a softmax per task, and a wide softmax of the same input."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(4, 16, 6))
        self.gates, self.wide = nn.ModuleList(nn.Linear(16, 4) for _ in range(2)), nn.Linear(16, wide)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outputs = torch.einsum("bk,ekn->ben", x, self.experts).sigmoid()
        weights = [torch.softmax(gate(x), -1).unsqueeze(-1) for gate in self.gates]
        return *((each * outputs).sum(1) for each in weights), torch.softmax(self.wide(x), -1)


@pytest.mark.parametrize(("wide", "products"), [(64, 1), (65, 2)])
def test_experts_and_gates_are_one_product(wide: int, products: int, default_rules: tuple[Rule, ...]) -> None:
    torch.manual_seed(0)
    program = programs.capture(Experts(wide), torch.randn(5, 16))
    result = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    called = [op_name(node.target) for node in result.exported.graph.nodes if node.op == "call_function"]
    assert called.count("aten.linear.default") == products
    assert "aten.einsum.default" not in called
    torch.testing.assert_close(programs.run(result), programs.run(program))
