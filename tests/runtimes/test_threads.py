"""While a package of AOTInductor runs, the other threads of the process run Python, as with the other targets."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.shared import made_once

from fuseconv.runtime.model import load


class Long(torch.nn.Module):
    """Products of square matrices, which take tenths of a second."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def write(output: Path) -> None:
        program = small_bundle.program(Long(), ("x=f32[n:1..1500,n]", "w=f32[n,n]"))
        small_bundle.write_bundle(program, program, output, ["aoti"], scratch=tmp_path_factory.mktemp("long"))

    return made_once(tmp_path_factory, "long.fuseconv", write)


def test_other_threads_run_while_a_model_runs(long: Path) -> None:
    model, x = load(long, "aoti"), torch.rand(1500, 1500)
    model(x[:2, :2].contiguous(), x[:2, :2].contiguous())
    call = threading.Thread(target=model, args=(x, x))
    times = [time.perf_counter()]
    call.start()
    while call.is_alive():
        time.sleep(0.001)
        times.append(time.perf_counter())
    longest = max(later - earlier for earlier, later in itertools.pairwise(times))
    assert longest < (times[-1] - times[0]) / 2
