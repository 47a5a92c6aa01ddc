"""Layers of attention, fused and compared with the original."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fuseconv.matching.graph import op_name
from fuseconv.matching.rewrite import rewrite
from fuseconv.numerics.fp64 import run_in_float64
from fuseconv.numerics.tolerance import compare
from fuseconv.program.captured import Program
from fuseconv.proof.checked import checked_plan
from fuseconv.rulebook.rule import Rule
from support import programs

HEADS, WIDTH = 4, 8


DIM = HEADS * WIDTH


SDPA = "aten.scaled_dot_product_attention.default"


BATCH, LENGTH = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=63)


class Layer(torch.nn.Module):
    """Heads of one projection, attended as `function` says, in [batch, length, DIM]."""

    triangle: Tensor
    allowed: Tensor
    future: Tensor
    slopes: Tensor

    def __init__(self, function: Callable[..., Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.project = torch.nn.Linear(DIM, 3 * DIM)
            self.few = torch.nn.Linear(DIM, 2 * WIDTH)
        self.register_buffer("triangle", torch.ones(64, 64).tril())
        self.register_buffer("allowed", torch.ones(64, 64).tril().bool().view(1, 1, 64, 64))
        self.register_buffer("future", torch.full((64, 64), -math.inf).triu(1))
        self.register_buffer("slopes", torch.tensor([0.5, 0.25, 0.125, 0.0625]).view(HEADS, 1, 1))
        self.to(dtype)

    def heads(self, x: Tensor) -> list[Tensor]:
        split = (part.view(*x.shape[:2], HEADS, WIDTH) for part in self.project(x).chunk(3, -1))
        return [part.transpose(1, 2) for part in split]

    def forward(self, *inputs: Tensor) -> tuple[Tensor]:
        return (self.function(self, *inputs),)


def merged(o: Tensor) -> Tensor:
    return o.transpose(1, 2).contiguous().view(o.shape[0], -1, DIM)


def noise(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 7, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)


def fused(
    function: Callable[..., Tensor], rules: Sequence[Rule], dtype: torch.dtype, *rest: Tensor
) -> tuple[Program, Program]:
    inputs = (noise(dtype), *rest)
    layer = Layer(function, dtype).eval()
    program = programs.program(layer, inputs, (tuple({0: BATCH, 1: LENGTH} for _ in inputs),))
    found = checked_plan(program, rules, device="cpu", targets=())
    assert found.rejected == ()
    result = rewrite(program, found)
    with torch.no_grad():
        for row in map(compare, programs.run(result), programs.run(program), run_in_float64(program, inputs)):
            assert row.ok, row.reason
    return program, result


def attention(program: Program) -> tuple[Any, ...]:
    nodes = [node for node in program.exported.graph.nodes if node.op == "call_function"]
    called = [op_name(node.target) for node in nodes]
    assert not [op for op in called if "softmax" in op or "matmul" in op or "bmm" in op or "einsum" in op]
    (node,) = (node for node, op in zip(nodes, called, strict=True) if op == SDPA)
    return (*node.args, *(None, 0.0, False)[max(len(node.args) - 3, 0) :])[3:6]
