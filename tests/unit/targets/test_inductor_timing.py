"""hide_launches: what it expects of Inductor. Its effect is tested on a GPU, in tests/gpu/test_hidden_launches.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._inductor.runtime.benchmarking import InductorBenchmarker, benchmarker

from fuseconv.targets.inductor_timing import hide_launches


def test_inductor_measures_with_the_benchmarker_that_is_changed() -> None:
    assert isinstance(benchmarker, InductorBenchmarker)


def test_the_gpu_sleeps_before_the_repetitions(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    def pairs(_: InductorBenchmarker, iters: int, **options: Any) -> list[tuple[int, int]]:
        done.append((iters, options))
        return [(0, 1)] * iters

    monkeypatch.setattr(InductorBenchmarker, "get_event_pairs", pairs)
    monkeypatch.setattr(torch.cuda, "_sleep", done.append)
    hide_launches()
    assert InductorBenchmarker().get_event_pairs(3, device_type="cuda") == [(0, 1)] * 3
    (given, cycles) = done
    assert given == (3, {"device_type": "cuda"})
    assert cycles > 0
