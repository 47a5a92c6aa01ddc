"""Models that accept one size only, or only equal dims: the error says so, and how to mend the call or the model."""

from __future__ import annotations

import pytest
import torch
from support.subjects import subject_of
from torch import Tensor

from fuseconv.capture.capture import capture
from fuseconv.errors import UsageError


class FourRows(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(4, 16).softmax(-1)


class Added(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.relu() + y


class Wrong(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 8), torch.nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))


CASES: dict[str, tuple[torch.nn.Module, list[str], str, str]] = {
    "a constant batch": (
        FourRows(),
        ["x=f32[batch:1..6,16]"],
        "return x.reshape(4, 16)",
        (
            "the model accepts batch = 4, but not 1, 2, 3, 5, 6: write 4 instead of batch:1..6 in --input, or change "
            "that line to compute its sizes from x.shape, or with -1 as in x.reshape(-1, ...)"
        ),
    ),
    "two names of one size": (
        Added(),
        ["x=f32[batch:2..8,4]", "y=f32[b:2..8,4]"],
        "return x.relu() + y",
        "the dims batch and b must be equal: write b instead of batch in --input",
    ),
    "a wrong layer": (
        Wrong(),
        ["x=f32[batch:1..32,16]"],
        "return self.last(self.first(x))",
        "correct the sizes, dtypes and ranges in --input, or --input-range; or that line, if the model is wrong",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_fix_names_what_the_model_accepts(name: str) -> None:
    module, texts, line, fix = CASES[name]
    with pytest.raises(UsageError, match="the model does not accept x") as caught:
        capture(subject_of(module, *texts))
    assert line in caught.value.where
    assert caught.value.fix == fix
