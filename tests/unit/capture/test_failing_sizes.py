"""A program that fails at sizes of its own contract is rejected, and the error names the sizes that work."""

from __future__ import annotations

import dataclasses
import re
from typing import NoReturn

import pytest
import torch
from support import small_bundle
from torch import Tensor, nn
from torch.utils._sympy.value_ranges import ValueRanges

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import draw
from fuseconv.errors import FuseconvError, UnsupportedError, UsageError
from fuseconv.parity.cases import cases
from fuseconv.parity.reference import refer
from fuseconv.program.captured import Program
from fuseconv.sizes import failing_sizes


class Positions(nn.Module):
    """Looks up the last position in a table of 16; turned, the positions begin at the end of one of 20."""

    def __init__(self, turned: bool = False) -> None:
        super().__init__()
        self.turned = turned
        self.table = nn.Embedding(16, 4)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        last = 20 - x.shape[1] if self.turned else x.shape[1] - 1
        return (torch.relu(x + self.table(torch.full((1,), last, dtype=torch.long))),)


class Cells(nn.Module):
    """Looks up the last cell of a grid in a table of 2500: each of its sizes may be 60, but not both."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2500, 1)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (x + self.table(torch.full((1,), x.shape[0] * x.shape[1] - 1, dtype=torch.long)),)


def widened(module: nn.Module, taken: str, dim: str) -> Program:
    """Returns a program captured for the sizes that it takes, with a contract that promises more."""
    captured = small_bundle.program(module, [f"x=f32[2,seq:{taken},4]"])
    (wide,) = parse_inputs([f"x=f32[2,seq:{dim},4]"])
    captured.exported.range_constraints.update(dict.fromkeys(captured.exported.range_constraints, ValueRanges(1, 9000)))
    return dataclasses.replace(captured, contract=dataclasses.replace(captured.contract, inputs=(wide,)))


def failure(captured: Program, sizes: dict[str, int]) -> FuseconvError:
    """Returns what running a program at these sizes raises."""
    with pytest.raises(FuseconvError) as told:
        failing_sizes.run(
            captured.exported.module(check_guards=False),
            captured.contract,
            draw(captured.contract, sizes, seed=0),
        )
    return told.value


@pytest.mark.parametrize(
    ("turned", "dim", "size", "taken"),
    [
        (False, "2..64", 64, "2..16"),
        (False, "4..64:4", 64, "4..16:4"),
        (False, "2..9000", 500, "2..16"),
        (True, "2..64", 64, "5..20"),
        (True, "2..18", 2, "5..18"),
        (True, "5..1000", 100, "5..20"),
    ],
)
def test_it_says_which_sizes_are_taken(turned: bool, dim: str, size: int, taken: str) -> None:
    captured = widened(Positions(turned), taken, dim)
    error = failure(captured, {"seq": size})
    assert isinstance(error, UnsupportedError)
    within = taken.split(":", maxsplit=1)[0]
    said = rf"the model works only with seq within {within}; it fails at seq = {size}: IndexError: index out of range"
    assert re.match(said, error.what)
    assert error.fix.startswith(f"write seq:{taken} in --input")
    assert re.search(r"test_failing_sizes\.py:\d+ in forward", error.where)
    # And with that range it goes through.
    narrow = small_bundle.program(Positions(turned), [f"x=f32[2,seq:{taken},4]"])
    assert refer(narrow, cases(narrow))


def test_sizes_that_fail_together_are_named() -> None:
    captured = small_bundle.program(Cells(), ["x=f32[height:2..60,width:2..60]"])
    error = failure(captured, {"height": 60, "width": 60})
    assert error.what.startswith("the model fails at height = 60, width = 60: IndexError: ")
    assert error.fix == "narrow the ranges of the dims to exclude these sizes"


def test_what_fails_at_every_size_is_no_matter_of_sizes() -> None:
    with pytest.raises(UsageError) as told:
        small_bundle.program(Positions(turned=True), ["x=f32[2,seq:2..4,4]"])
    assert told.value.what.startswith("the model fails on random inputs at seq = 3: IndexError: ")


def test_a_conversion_ends_with_it() -> None:
    captured = widened(Positions(), "2..16", "2..64")
    with pytest.raises(UnsupportedError, match="works only with seq within"):
        refer(captured, cases(captured))


def test_a_capture_ends_with_it_where_the_source_names_the_size() -> None:
    with pytest.raises(UnsupportedError, match=r"works only with seq within 2\.\.16"):
        small_bundle.program(Positions(), ["x=f32[2,seq:2..64,4]"])


def test_memory_that_runs_out_says_nothing_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = small_bundle.program(Positions(), ["x=f32[2,seq:2..16,4]"])

    def full(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(failing_sizes, "_run", full)
    with pytest.raises(torch.OutOfMemoryError):
        refer(captured, cases(captured))


def test_nothing_is_tried_after_a_kernel_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = widened(Positions(), "2..16", "2..64")
    calls = []

    def stopped(*_: object) -> NoReturn:
        calls.append(1)
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nmore")

    monkeypatch.setattr(failing_sizes, "_run", stopped)
    error = failure(captured, {"seq": 64})
    assert (
        error.what
        == "the model fails on the GPU at seq = 64: AcceleratorError: CUDA error: device-side assert triggered"
    )
    assert "--device cpu" in error.fix
    assert len(calls) == 1
