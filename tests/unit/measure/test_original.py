"""The original model as calls to time, and what is said of a model that cannot be called so."""

from __future__ import annotations

import pytest
import torch

from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError
from fuseconv.measure.original import original_calls
from fuseconv.sources import Subject

INPUTS = [(torch.zeros(1, 4),), (torch.zeros(3, 4),)]


def subject(module: torch.nn.Module) -> Subject:
    return Subject(module.eval(), INPUTS[0], Contract((), (), "cpu"), (), "pickle", "0" * 64)


class Failing(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such shape\n\nadvice")


class Uncompiled(torch.nn.Module):
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_each_of_the_inputs_has_a_call() -> None:
    calls = original_calls(subject(torch.nn.Identity()), "eager", INPUTS)
    assert [call() is tensors[0] for call, tensors in zip(calls, INPUTS, strict=True)] == [True, True]


FAILURES = {
    "it raises": (Failing(), "eager", r"the original model failed: no such shape\n  at"),
    "torch.compile refuses it": (torch.jit.script(torch.nn.Linear(4, 4)), "compile", "does not support compiling"),
    "torch.compile leaves it alone": (Uncompiled(), "compile", "torch.compile compiled no part"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_model_that_cannot_be_timed_says_why(name: str) -> None:
    module, way, words = FAILURES[name]
    with pytest.raises(UpstreamError, match=words):
        original_calls(subject(module), way, INPUTS)
