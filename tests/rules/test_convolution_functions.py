"""The functions of rules about convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support import programs
from support.channels import Modulated, Shuffled, archive
from torch._subclasses import FakeTensorMode

from fuseconv.capture.capture import capture
from fuseconv.graph.proved_sizes import row_major
from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.rulebook.predicates import FUNCTIONS
from fuseconv.rulebook.refused import Refused
from fuseconv.rulebook.rule import Rule
from fuseconv.sources import Options, read

SINGLE, HALF = torch.float32, torch.float16


@pytest.fixture
def without_tf32() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def check_tf32(device: str, dtype: torch.dtype) -> None:
    operand: Any = torch.fx.Graph().placeholder("x")
    with FakeTensorMode():
        operand.meta["val"] = torch.empty(2, 8, 4, 4, device=device, dtype=dtype)
    FUNCTIONS["may_use_tf32"].run(None, operand)


def test_tf32_is_allowed_by_default() -> None:
    check_tf32("cuda", SINGLE)


def test_tf32_is_not_used_against_the_setting(without_tf32: None) -> None:
    with pytest.raises(Refused, match="fp32_precision to be 'tf32'"):
        check_tf32("cuda", SINGLE)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", SINGLE), ("cuda", HALF), ("cuda", torch.float64)])
def test_the_setting_is_about_f32_on_cuda(without_tf32: None, device: str, dtype: torch.dtype) -> None:
    check_tf32(device, dtype)


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
    assert all(row_major(copy.meta["val"]) for copy in copies)
    # Only a channel shuffle changes the order of elements: two in one model, none in the other.
    assert sum(not row_major(copy.args[0].meta["val"]) for copy in copies) == (2 if make is Shuffled else 0)
