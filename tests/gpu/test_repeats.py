"""An op gives the same bits in every call at the sizes of real models, also right after the kernel that writes x.

A kernel that reads shared memory too late, or overwrites it too early, gives wrong elements in some calls only, and
only if a block processes several tiles.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from support import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import cases  # scripts, not a package
import convolutions

pytestmark = pytest.mark.gpu

CALLS = 40
OPS = [case for case in cases.cases("cuda") if not case.learns]
HOPPER = [case for case in cases.cases("cuda", "sm90") if case.op == "linear_act" and case.dtype != "f32"]
CONVOLUTIONS = [*convolutions.RESNET, *convolutions.EFFICIENTNET, *convolutions.OTHER]


def assert_repeats(call: Callable[..., Any], operands: Sequence[Any]) -> None:
    """Calls an op again and again, each time on a new copy of its first operand. Compares the bits of the results."""
    first, *others = operands
    expected = torch.utils._pytree.tree_leaves(call(*operands))
    for _ in range(CALLS):
        results = torch.utils._pytree.tree_leaves(call(first.clone(), *others))
        for result, same in zip(results, expected, strict=True):
            assert torch.equal(result, same), f"{int((result != same).sum())} of {result.numel()} elements differ"


def name(case: cases.Case) -> str:
    return f"{case.op}-{case.act}-{case.dtype}-{'x'.join(map(str, case.shape))}"


@pytest.mark.parametrize(
    "case",
    [
        *(pytest.param(case, id=name(case)) for case in OPS),
        *(pytest.param(case, id=f"{name(case)}-sm90") for case in HOPPER),
    ],
)
def test_an_op_repeats_its_bits(case: cases.Case) -> None:
    operands = case.draw("cuda")
    assert_repeats(case.ours, (*operands.tensors, *operands.rest))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_a_convolution_repeats_its_bits(case: convolutions.Case, dtype: torch.dtype) -> None:
    peers, draw, _ = convolutions.calls(case, dtype)
    assert_repeats(peers["ours"], draw())
