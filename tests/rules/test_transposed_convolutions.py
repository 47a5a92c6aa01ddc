"""Transposed convolutions as convolutions: the same results at every size, and views where no copy is needed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch.export import Dim

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.program.captured import Program
from fuseconv.proof.rule_check import check_examples
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule

OPS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
COPIES = ("clone", "contiguous", "reshape", "to.")


def captured(model: nn.Module, dims: int, channels: int = 8) -> Program:
    """Captures a model of images of any number and size; `channels` is how many channels they have."""
    sizes = [Dim(name, min=1, max=64) for name in ("n", "length", "height", "width")[: dims + 1]]
    shape = dict(zip((0, 2, 3, 4), sizes, strict=False))
    x = torch.randn(2, channels, *(5, 3, 4)[:dims]).to(next(model.parameters()).dtype)
    return programs.capture(model, x, dims=(shape,))


def rewritten(program: Program, rules: tuple[Rule, ...], expected: dict[str, int]) -> Program:
    found = plan(program, rules, device="cuda", targets=())
    assert {name: count for name, count in found.counts().items() if "transposed-phases" in name} == expected
    return rewrite(program, found)


@pytest.mark.parametrize(
    ("dims", "kernel", "stride", "padding", "output_padding", "bias"),
    [
        (1, 16, 8, 4, 0, True),
        (1, 4, 2, 1, 0, False),
        (1, 2, 2, 0, 0, True),
        (1, 6, 3, 1, 1, True),
        (1, 6, 2, 3, 1, True),
        (1, 1024, 256, 0, 0, True),
        (2, 4, 2, 1, 0, False),
        (2, 2, 2, 0, 0, True),
        (2, (4, 6), (4, 3), (0, 2), (0, 1), True),
        (2, (3, 4), (1, 2), (1, 1), 0, True),
        (3, 4, 2, 1, 1, True),
    ],
)
def test_a_transposed_convolution_is_a_convolution(
    dims: int, kernel: Any, stride: Any, padding: Any, output_padding: Any, bias: bool, default_rules: tuple[Rule, ...]
) -> None:
    torch.manual_seed(0)
    model = OPS[dims](8, 6, kernel, stride, padding, output_padding, bias=bias)
    program = captured(model, dims)
    graph = rewritten(program, default_rules, {f"conv{dims}d-transposed-phases": 1}).exported
    for sizes in ((1, 8, 2, 2, 2), (2, 8, 2, 3, 5), (3, 8, 13, 2, 7), (1, 8, 64, 3, 2), (3, 8, 1, 1, 1)):
        x = torch.randn(sizes[: dims + 2])
        if min(model(x).shape) == 0:
            continue
        torch.testing.assert_close(graph.module()(x), model(x))


class Upsampled(nn.Module):
    """Two upsamplings by a transposed convolution and a residual block after each of them, as in HiFi-GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.ConvTranspose1d(16, 16, 16, 8, 4), nn.ConvTranspose1d(16, 8, 4, 2, 1)
        self.blocks = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for width in (16, 8))

    def forward(self, x: Tensor) -> Tensor:
        for up, block in zip((self.first, self.second), self.blocks, strict=True):
            x = up(nn.functional.leaky_relu(x, 0.1))
            x = x + block(nn.functional.leaky_relu(x, 0.1))
        return x.mean(2)


def test_sequences_stay_channels_last_without_a_copy(default_rules: tuple[Rule, ...]) -> None:
    program = captured(Upsampled().half(), 1, channels=16)
    graph = rewritten(program, default_rules, {"conv1d-transposed-phases": 2}).exported.graph
    calls = graph.find_nodes(op="call_function", target=torch.ops.fuseconv.conv_act.default)
    assert len(calls) == 4
    assert all(call.meta["val"].stride(1) == 1 for call in calls)
    called = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    assert not any(copy in op for op in called for copy in COPIES)
    for merge in graph.find_nodes(op="call_function", target=torch.ops.aten.flatten.using_ints):
        strides = merge.args[0].meta["val"].stride()
        assert strides[1] == strides[2] * merge.args[0].meta["val"].size(2)


def test_a_slice_of_everything_disappears(default_rules: tuple[Rule, ...]) -> None:
    program = captured(nn.ConvTranspose2d(8, 8, 2, 2), 2)
    graph = rewritten(program, default_rules, {"conv2d-transposed-phases": 1}).exported.graph
    assert not graph.find_nodes(op="call_function", target=torch.ops.aten.slice.Tensor)


@pytest.mark.parametrize(
    "given",
    [
        {"kernel_size": 5, "stride": 2},
        {"kernel_size": 3, "stride": 1},
        {"kernel_size": 4, "stride": 2, "groups": 2},
        {"kernel_size": 4, "stride": 2, "dilation": 2},
        {"kernel_size": 4, "stride": 2, "padding": 0, "output_padding": 1},
    ],
)
def test_other_transposed_convolutions_are_kept(given: dict[str, int], default_rules: tuple[Rule, ...]) -> None:
    program = captured(nn.ConvTranspose1d(8, 6, **given), 1)  # type: ignore[arg-type]
    rewritten(program, default_rules, {})


def operand(*sizes: int) -> Any:
    node: Any = torch.fx.Graph().placeholder("w")
    node.meta["val"] = torch.empty(sizes)
    return node


def test_the_functions_of_a_split_kernel() -> None:
    weight = operand(3, 5, 16, 4)
    assert FUNCTIONS["split_kernel"].run(None, weight, [8, 1]) == [3, 5, 2, 8, 4, 1]
    assert FUNCTIONS["full_padding"].run(None, weight, [8, 1]) == [1, 3]
    for stride in ([8], [1, 1], [8, 3]):
        with pytest.raises(Refused, match="that divide the kernel"):
            FUNCTIONS["split_kernel"].run(None, weight, stride)


def test_where_the_result_ends() -> None:
    ends = FUNCTIONS["slice_end"].run
    row = list(range(10))
    assert (row[: ends(None, 4, 0)], row[: ends(None, 4, 1)], row[: ends(None, 2, 2)]) == (row[:6], row[:7], row)
    with pytest.raises(Refused, match="output_padding of at most 1"):
        ends(None, 1, 2)


def test_the_check_of_a_rule_does_not_depend_on_the_processor(default_rules: tuple[Rule, ...]) -> None:
    # In bf16, oneDNN's transposed convolution of NaN differs between processors.
    rule = next(rule for rule in default_rules if rule.name == "conv1d-transposed-phases")
    assert [row for row in check_examples(rule) if not row.ok] == []
