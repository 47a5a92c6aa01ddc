"""A bundle with another form of its linear algebra, and the same bundle again from the lock. The times are told."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fuseconv
from fuseconv.measure.pairs import Ratio
from fuseconv.measure.turns import Duel, Times
from fuseconv.pipeline.convert import convert

ALLOWED: dict[str, Any] = {"allow": ["non-finite"]}
"""Infinite inputs, which are NaN at other places after another order of products."""


class Chain(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.relu(q @ k @ v)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("searched") / "chain.pt2"
    inputs = (torch.randn(48, 4), torch.randn(4, 48), torch.randn(48, 4))
    rows = torch.export.Dim("n", min=1, max=64)
    torch.export.save(torch.export.export(Chain(), inputs, dynamic_shapes=({0: rows}, {1: rows}, {0: rows})), path)
    return path


def told(ratio: float) -> Any:
    def duels(_base: Path, challengers: Sequence[Path], *_: object, sizes: Sequence[Any], **__: object) -> list[Duel]:
        one = Ratio(ratio, ratio - 0.01, ratio + 0.01)
        return [Duel(one, {"export": Times(10.0, 10.0 * ratio, one)}, (one,) * len(sizes)) for _ in challengers]

    return duels


def test_a_faster_form_is_in_the_bundle_the_plan_and_the_lock(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseconv.pipeline.search.duels", told(0.5))
    lock, output = model.with_name("fuseconv.lock"), model.with_name("a.fuseconv")
    done = convert(model, target=["export"], output=output, search=True, lock=lock, **ALLOWED)
    (step,) = [step for step in done.plan.applied if step.rule == "search"]
    assert step.replace == ("e0 = aten.matmul.default(v1, v2)", "v4 = aten.matmul.default(v0, e0)")
    assert (step.choices["export"].fused_us, step.choices["export"].unfused_us) == (5.0, 10.0)
    assert any(miss.reason.startswith("chosen: ") for miss in done.plan.misses)
    assert done.report.ok
    assert {limit.case for limit in done.limits} <= {"NaN", "infinities", "special", "overflowing", "greatest"}
    inputs = (torch.randn(7, 4), torch.randn(4, 7), torch.randn(7, 4))
    torch.testing.assert_close(fuseconv.load(output)(*inputs), Chain()(*inputs))
    (form,) = json.loads(lock.read_text())["forms"]["a.fuseconv"].values()
    assert form["lines"] == list(step.replace)
    monkeypatch.setitem(sys.modules, "egglog.bindings", None)  # a frozen conversion does not search
    monkeypatch.setattr("fuseconv.pipeline.search.duels", lambda *_, **__: pytest.fail("it was timed"))
    again = convert(model, target=["export"], output=output, frozen=lock, tune="none", **ALLOWED)
    assert again.plan == done.plan


def test_a_form_that_differs_for_infinite_inputs_must_be_allowed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuseconv.pipeline.search.duels", told(0.5))
    done = convert(model, target=["export"], output=model.with_name("c.fuseconv"), search=True)
    (miss,) = [miss for miss in done.plan.misses if miss.rule == "search"]
    assert "was not tried: output output_0 differs in case infinities" in miss.reason
