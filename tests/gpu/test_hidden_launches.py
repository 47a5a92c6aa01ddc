"""Inductor's benchmark of kernels, as the process that compiles a package uses it."""

from __future__ import annotations

import time

import pytest
import torch
from torch._inductor.runtime.benchmarking import InductorBenchmarker

from fuseconv.targets.inductor_timing import hide_launches

pytestmark = pytest.mark.gpu

LAUNCH = 2e-3
"""How long the host takes to launch the kernel, in seconds: longer than what Inductor launches before it."""


def test_launches_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1000, device="cuda")

    def slowly_launched() -> None:
        until = time.perf_counter() + LAUNCH
        while time.perf_counter() < until:
            pass
        x.add_(1)

    monkeypatch.setattr(InductorBenchmarker, "get_event_pairs", InductorBenchmarker.get_event_pairs)  # to restore it
    before = InductorBenchmarker().benchmark_gpu(slowly_launched)
    hide_launches()
    after = InductorBenchmarker().benchmark_gpu(slowly_launched)
    assert after < 10e-3 < 100e-3 < before  # in milliseconds


def test_all_repetitions_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1000, device="cuda")
    monkeypatch.setattr(InductorBenchmarker, "get_event_pairs", InductorBenchmarker.get_event_pairs)
    hide_launches()
    times = InductorBenchmarker().benchmark_gpu(lambda: x.add_(1), benchmark_iters=7, return_mode="all")
    assert isinstance(times, list)
    assert len(times) == 7
