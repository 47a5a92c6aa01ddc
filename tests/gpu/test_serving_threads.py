"""Loaded bundles on a GPU as servers use them: in threads that have not used CUDA, and with swaps of weights."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.graphs import TARGETS, draw

from fuseconv.runtime.cuda_graphs import Choice
from fuseconv.runtime.model import load

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.mark.parametrize("choice", ["auto", False])
@pytest.mark.parametrize("target", TARGETS)
def test_a_thread_needs_no_cuda_context(target: str, choice: Choice, graphs_bundle: Path) -> None:
    model, inputs = load(graphs_bundle, target, cuda_graphs=choice), draw(3, 7)
    expected = model(*inputs)
    torch.cuda.synchronize()
    for _ in range(3):  # each in a pool of its own, so that each is the first call of a thread
        with ThreadPoolExecutor(1) as pool:
            results = pool.submit(model, *inputs).result()
        for result, value in zip(results, expected, strict=True):
            torch.testing.assert_close(result, value, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("target", [*TARGETS, "export"])
def test_swaps_take_no_memory(target: str, graphs_bundle: Path) -> None:
    model, inputs = load(graphs_bundle, target, cuda_graphs=False), draw(3, 7)
    used = []
    for _ in range(4):
        model(*inputs)
        model.swap(graphs_bundle)
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated())
    assert used[-1] <= used[0]


@pytest.mark.parametrize("choice", ["auto", False])
@pytest.mark.parametrize("target", TARGETS)
def test_calls_of_several_threads_give_the_same_bits(target: str, choice: Choice, graphs_bundle: Path) -> None:
    model = load(graphs_bundle, target, cuda_graphs=choice)
    inputs = [draw(batch, seq) for batch in (1, 2, 3, 8) for seq in (3, 7)]
    for _ in range(3):  # TorchScript profiles in the first and optimises in the second
        expected = [model(*one) for one in inputs]
    torch.cuda.synchronize()

    def work(first: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for at in range(first, first + 40):
                results = model(*inputs[at % len(inputs)])
                torch.cuda.current_stream().synchronize()
                for result, value in zip(results, expected[at % len(inputs)], strict=True):
                    torch.testing.assert_close(result, value, rtol=0, atol=0, equal_nan=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def test_times_leave_out_the_wait_for_other_calls(graphs_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = load(graphs_bundle, "aoti", cuda_graphs="auto"), draw(3, 7)
    runner: Any = model._runner
    seen: list[float] = []

    def timed(_key: object, _contended: bool, _replayed: bool, seconds: float) -> bool:
        seen.append(seconds)
        return False

    monkeypatch.setattr(runner._policy, "timed", timed)
    for _ in range(2):
        runner._policy.rest = 0
        model(*inputs)
    torch.cuda.synchronize()
    before, runner._policy.rest = len(seen), 0
    with ThreadPoolExecutor(1) as pool:
        with runner._turn:
            waiting = pool.submit(model, *inputs)
            time.sleep(0.5)
            assert not waiting.done()
        waiting.result()
    torch.cuda.synchronize()
    runner._policy.rest = 0
    model(*inputs)  # reports the times of the calls before
    assert len(seen) > before
    assert max(seen[before:]) < 0.25
