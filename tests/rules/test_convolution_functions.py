"""The functions of rules about convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from support import programs
from support.channels import Modulated, Shuffled, archive
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fuseconv.capture.capture import capture
from fuseconv.graph.proved_sizes import row_major
from fuseconv.matching.plan import plan
from fuseconv.matching.replacement import settled
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Options, read

SINGLE, HALF = torch.float32, torch.float16


def may_use_tf32(device: str, dtype: torch.dtype) -> bool:
    operand: Any = torch.fx.Graph().placeholder("x")
    with FakeTensorMode():
        operand.meta["val"] = torch.empty(2, 8, 4, 4, device=device, dtype=dtype)
    return bool(FUNCTIONS["may_use_tf32"].run(None, operand))


def test_tf32_is_allowed_by_default() -> None:
    assert may_use_tf32("cuda", SINGLE)


def test_tf32_is_not_used_against_the_setting(without_tf32: None) -> None:
    assert not may_use_tf32("cuda", SINGLE)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", SINGLE), ("cuda", HALF), ("cuda", torch.float64)])
def test_the_setting_is_about_f32_on_cuda(without_tf32: None, device: str, dtype: torch.dtype) -> None:
    assert may_use_tf32(device, dtype)


def test_a_step_contains_the_setting_of_the_process_that_planned_it(without_tf32: None) -> None:
    line = "y = fuseconv.conv_act.default(x, w, None, None, s, p, d, False, o, 1, 'none', True, may_use_tf32(x))"
    with FakeTensorMode():
        x = operand("x", torch.empty(2, 8, 4, 4, device="cuda"))
    (settled_line,) = settled([line], {"x": x}, Mock())
    assert settled_line == line.replace("may_use_tf32(x)", "False")


def test_no_step_reads_the_setting_again(default_rules: tuple[Rule, ...]) -> None:
    program = programs.capture(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()), torch.randn(2, 3, 6, 5))
    (step,) = plan(program, default_rules, device="cpu", targets=()).steps
    assert step.replace == ("y = fuseconv.conv_act.default(x, w, b, None, s, p, d, t, o, q, act, True, True)",)


@pytest.mark.parametrize(
    ("weight", "groups", "holds"),
    [
        ((5, 16, 3, 3), 1, True),
        ((24, 4, 4, 4), 1, True),
        ((24, 4, 5, 3), 1, False),
        ((24, 6, 4, 4), 1, False),
        ((24, 16, 3, 3), 2, False),
        ((24, 32, 2), 1, True),
    ],
)
def test_which_convolutions_have_a_kernel_without_tf32(weight: tuple[int, ...], groups: int, holds: bool) -> None:
    check(holds, "has_kernel_in_f32", operand("w", torch.empty(weight)), groups)


def test_convolutions_are_fused_on_a_cpu_without_tf32(without_tf32: None, default_rules: tuple[Rule, ...]) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    program = programs.capture(module, torch.randn(2, 3, 6, 5))
    assert plan(program, default_rules, device="cpu", targets=()).counts() == {"conv2d-act": 1}


@pytest.mark.parametrize("make", [Shuffled, Modulated])
def test_images_are_channels_last_from_the_first_convolution_to_the_last(
    make: type[Shuffled | Modulated], default_rules: tuple[Rule, ...], tmp_path: Path
) -> None:
    program = capture(read(archive(make().half(), tmp_path / "model.pt2"), options=Options()), "cpu")
    found = plan(program, default_rules, device="cuda", targets=())
    assert found.counts().keys() >= make.rules
    graph = rewrite(program, found).exported.graph
    calls = graph.find_nodes(op="call_function", target=torch.ops.fuseconv.conv_act.default)
    assert len(calls) > 1
    assert all(call.meta["val"].stride(1) == 1 for call in calls)
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.contiguous.default)
    # Only a channel shuffle changes the order of elements: two in one model, none in the other.
    assert sum(not row_major(copy.args[0].meta["val"]) for copy in copies) == (2 if make is Shuffled else 0)


def operand(name: str, tensor: torch.Tensor) -> Any:
    node: Any = torch.fx.Graph().placeholder(name)
    node.meta["val"] = tensor
    return node


@pytest.mark.parametrize(
    ("x", "weight", "groups", "holds"),
    [
        ((1, 8, 5, 5), (16, 8, 1, 1), 1, True),
        ((1, 8, 5, 5), (8, 1, 3, 3), 8, True),
        ((1, 8, 5, 5), (16, 4, 1, 1), 2, False),
        ((1, 7, 9, 9), (7, 1, 1, 11), 7, True),
        ((1, 8, 5, 5), (16, 1, 3, 3), 8, False),
        ((1, 8, 5, 5), (16, 8, 3, 3), 1, False),
        ((1, 8, 5), (32, 8, 1), 1, True),
        ((1, 8, 5), (31, 8, 1), 1, False),
        ((1, 8, 5), (8, 1, 31), 8, True),
        ((1, 8, 5), (32, 1, 3), 8, False),
        ((1, 8, 5, 5, 5), (32, 8, 1, 1, 1), 1, False),
        ((1, 8, 5, 5, 5), (8, 1, 3, 3, 3), 8, False),
    ],
)
def test_which_convolutions_read_channels_last_images(
    x: tuple[int, ...], weight: tuple[int, ...], groups: int, holds: bool
) -> None:
    arguments = [operand("x", torch.empty(x)), operand("w", torch.empty(weight)), groups]
    check(holds, "has_channels_last_kernel", *arguments)


@pytest.mark.parametrize(
    ("weight", "groups", "dtype", "device", "dynamic", "holds"),
    [
        ((8, 8, 1), 1, torch.float16, "cuda", True, True),
        ((8, 2, 1), 4, torch.float16, "cuda", True, False),
        ((8, 2, 1), 4, torch.bfloat16, "cuda", True, False),
        ((8, 2, 1), 4, torch.float16, "cuda", False, True),
        ((8, 2, 1), 4, torch.float32, "cuda", True, True),
        ((8, 2, 1), 4, torch.float16, "cpu", True, True),
        ((8, 1, 3), 8, torch.float16, "cuda", True, True),
    ],
)
def test_which_convolutions_add_a_residual(
    weight: tuple[int, ...], groups: int, dtype: torch.dtype, device: str, dynamic: bool, holds: bool
) -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    batch = DimDynamic.DYNAMIC if dynamic else DimDynamic.STATIC
    symbols: Any = StatelessSymbolicContext([batch, DimDynamic.STATIC, DimDynamic.STATIC])
    like = mode.from_tensor(torch.empty(3, 8, 5, dtype=dtype), symbolic_context=symbols)
    with mode:
        x = torch.empty(like.shape, dtype=dtype, device=device)
        check(holds, "adds_residual", operand("x", x), operand("w", torch.empty(weight)), groups)


IMAGES = torch.empty(2, 5, 6, 8)  # [N, H, W, C]


@pytest.mark.parametrize(
    ("tensor", "holds"),
    [
        (IMAGES.permute(0, 3, 1, 2), True),
        (IMAGES.permute(0, 3, 1, 2)[:, 2:5], True),
        (IMAGES.unflatten(3, (2, 4)).permute(0, 4, 3, 1, 2), True),
        (IMAGES[..., ::2].permute(0, 3, 1, 2), False),
        (IMAGES[:, :, ::2].permute(0, 3, 1, 2), True),
        (IMAGES[:1].permute(0, 3, 1, 2).expand(4, 8, 5, 6), False),
        (IMAGES, False),
        (IMAGES.permute(0, 3, 2, 1), False),
        (torch.empty(2, 1, 5, 6), False),
        (IMAGES[0].permute(2, 0, 1), False),
    ],
)
def test_which_images_are_channels_last(tensor: torch.Tensor, holds: bool) -> None:
    check(holds, "is_channels_last", operand("x", tensor))


def check(holds: bool, function: str, *operands: Any) -> None:
    if holds:
        FUNCTIONS[function].run(None, *operands)
    else:
        with pytest.raises(Refused):
            FUNCTIONS[function].run(None, *operands)


@pytest.mark.parametrize(
    ("pad", "padding", "expected"),
    [
        ([1, 2], [0, 0], [0, 1, 0, 2]),  # of the last dim alone
        ([1, 2, 3, 4], [5, 6], [8, 7, 9, 8]),
        ([1, 2, 3, 4], [5, 6, 7, 8], [8, 7, 11, 10]),  # on a padding of unequal sides
        ([], [1, 1], [1, 1, 1, 1]),
    ],
)
def test_a_padding_and_one_before_it_are_added(pad: list[int], padding: list[int], expected: list[int]) -> None:
    assert FUNCTIONS["padding_around"].run(None, pad, padding, [1, 1]) == expected


@pytest.mark.parametrize("pad", [[0, -1], [0, 0, 0, 0, 1, 1]], ids=["a crop", "of the channels"])
def test_what_is_no_padding_of_a_convolution(pad: list[int]) -> None:
    with pytest.raises(Refused, match="at most 4 numbers of padding, none negative"):
        FUNCTIONS["padding_around"].run(None, pad, [0, 0], [1, 1])
