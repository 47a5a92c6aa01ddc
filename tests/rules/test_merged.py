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


def test_a_part_after_which_rows_are_not_aligned_is_a_product_of_its_own(default_rules: tuple[Rule, ...]) -> None:
    class Attention(nn.Module):
        """Queries, keys and values, and a bias for each of three heads, as between pairs of residues."""

        def __init__(self) -> None:
            super().__init__()
            self.bias, self.q, self.k, self.v = (nn.Linear(24, n, bias=False) for n in (3, 24, 24, 24))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (one(x).unflatten(-1, (3, 8)).transpose(1, 2) for one in (self.q, self.k, self.v))
            bias = self.bias(x).transpose(1, 2).unsqueeze(2)
            return nn.functional.scaled_dot_product_attention(q, k, v, bias).transpose(1, 2).flatten(2) + 1

    torch.manual_seed(0)
    program = programs.capture(Attention(), torch.randn(2, 5, 24))
    result = rewrite(program, plan(program, default_rules, device="cpu", targets=()))
    widths = [
        node.meta["val"].shape[-1]
        for node in result.exported.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
    ]
    assert sorted(widths) == [3, 72]
    torch.testing.assert_close(programs.run(result), programs.run(program))
