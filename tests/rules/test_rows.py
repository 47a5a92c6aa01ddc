"""Rows that are no multiples of 16 bytes are padded with zeros for the products of a GPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import programs, small_bundle
from torch import Tensor, nn
from torch.nn import functional as F

from fuseconv.matching.graph import op_name
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.rule import Rule

PAD, CUT, LINEAR = "aten.constant_pad_nd.default", "aten.slice.Tensor", "fuseconv.linear_act.default"

ROWS = (32, 128)


class Gated(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(k, n), nn.Linear(k, n)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.gate(x)) * self.up(x)


class Tied(nn.Module):
    """A weight that is also added: padded, it would be stored twice."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, 63))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(x, self.weight), self.weight + 1


class Crossed(nn.Module):
    """A layer of a cross network: a product that is multiplied by its input."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.linear(x)


def two(k: int, hidden: int, n: int, act: type[nn.Module] = nn.GELU) -> nn.Module:
    return nn.Sequential(nn.Linear(k, hidden), act(), nn.Linear(hidden, n))


def called(program: Any) -> list[str]:
    nodes = program.exported.graph.nodes
    return [op_name(node.target) for node in nodes if node.op == "call_function" and "sym_size" not in str(node.target)]


TABLE: dict[str, tuple[Callable[[], nn.Module], int, str, list[str]]] = {
    "odd rows": (lambda: nn.Linear(63, 256), 63, "cuda", [PAD, LINEAR]),
    "odd rows without bias": (lambda: nn.Linear(63, 256, bias=False), 63, "cuda", [PAD, LINEAR]),
    "odd rows of two layers": (lambda: two(63, 256, 8), 63, "cuda", [PAD, "fuseconv.mlp.default"]),
    "odd rows of two products": (lambda: Gated(63, 256), 63, "cuda", [PAD, "fuseconv.linear_gated.default"]),
    "odd rows between layers": (lambda: two(64, 63, 160), 64, "cuda", ["fuseconv.mlp.default"]),
    "odd rows between wide layers": (lambda: two(64, 259, 512, nn.ReLU), 64, "cuda", [LINEAR, LINEAR]),
    "odd rows after sigmoid": (lambda: two(64, 63, 160, nn.Sigmoid), 64, "cuda", [LINEAR, PAD, LINEAR]),
    "odd columns that are multiplied": (lambda: Crossed(259), 259, "cuda", [PAD, LINEAR, CUT, "aten.mul.Tensor"]),
    "even rows": (lambda: nn.Linear(64, 256), 64, "cuda", [LINEAR]),
    "few columns": (lambda: nn.Linear(1023, 16), 1023, "cuda", [LINEAR]),
    "a small product": (lambda: nn.Linear(63, 32), 63, "cuda", [LINEAR]),
    "a weight with another use": (Tied, 63, "cuda", [LINEAR, "aten.add.Tensor"]),
    "on a CPU": (lambda: nn.Linear(63, 256), 63, "cpu", ["aten.linear.default"]),
}


@pytest.mark.parametrize("name", TABLE)
def test_rows_are_padded(name: str, default_rules: tuple[Rule, ...]) -> None:
    build, k, device, ops = TABLE[name]
    torch.manual_seed(0)
    program = programs.capture(build(), torch.randn(*ROWS, k))
    result = rewrite(program, plan(program, default_rules, device=device, targets=()))
    assert called(result) == ops
    torch.testing.assert_close(programs.run(result), programs.run(program))


@pytest.mark.parametrize(
    ("rows", "ops"),
    [("1..4096", [PAD, LINEAR]), ("8..1024:8", [PAD, LINEAR]), ("1..64", [LINEAR])],
)
def test_dynamic_rows_are_padded_if_their_range_is_large(
    rows: str, ops: list[str], default_rules: tuple[Rule, ...]
) -> None:
    """The product with 63 x 2048 weights is large from 261 rows on. The program is captured with fewer."""
    program = small_bundle.program(nn.Linear(63, 2048), (f"x=f32[batch:{rows},63]",))
    result = rewrite(program, plan(program, default_rules, device="cuda", targets=()))
    assert called(result) == ops


def test_padded_weights_are_multiples_of_16_bytes(default_rules: tuple[Rule, ...]) -> None:
    program = programs.capture(two(62, 259, 512), torch.randn(*ROWS, 62))
    result = rewrite(program, plan(program, default_rules, device="cuda", targets=()))
    shapes = [tuple(tensor.shape) for tensor in result.exported.state_dict.values() if tensor.dim() == 2]
    assert sorted(shapes) == [(260, 64), (512, 260)]


@pytest.mark.parametrize("build", [lambda: nn.Linear(63, 256), lambda: two(64, 63, 160)], ids=["one", "two"])
def test_a_row_of_nan_stays_in_its_row(build: Callable[[], nn.Module], default_rules: tuple[Rule, ...]) -> None:
    torch.manual_seed(0)
    module = build()
    x = torch.randn(*ROWS, next(module.parameters()).shape[1])
    x[3, 5, 7] = torch.nan
    program = programs.capture(module, x)
    result = rewrite(program, plan(program, default_rules, device="cuda", targets=()))
    torch.testing.assert_close(programs.run(result), programs.run(program), equal_nan=True)
