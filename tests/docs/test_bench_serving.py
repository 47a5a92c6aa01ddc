"""bench/serving.py: its traffic is the same every time, every call is recorded, and nothing is omitted silently."""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT

sys.path.insert(0, str(ROOT / "bench"))

import render  # scripts, not a package
import replay
import served
import traffic

serving = importlib.import_module("serving")

RANGES = (range(1, 9), range(8, 129, 4))


@pytest.mark.parametrize("pattern", traffic.PATTERNS)
def test_traffic_is_the_same_every_time_and_avoids_the_first_size(pattern: str) -> None:
    made = traffic.traffic(pattern, RANGES, 300)
    assert made == traffic.traffic(pattern, RANGES, 300)
    assert len(made.sizes) == 300
    assert traffic.outside(RANGES) not in made.sizes
    for size in made.sizes:
        assert all(length in values for length, values in zip(size, RANGES, strict=True))


def test_patterns_differ_in_how_many_sizes_they_have() -> None:
    one, zipf, uniform = (set(traffic.traffic(name, RANGES, 300).sizes) for name in ("one", "zipf", "random"))
    assert len(one) == 1
    assert one < zipf
    assert len(zipf) <= traffic.DISTINCT < len(uniform)


def test_every_call_is_made_once_from_all_threads_and_recorded() -> None:
    made: list[int] = []
    callers = set()

    def call(x: torch.Tensor) -> None:
        assert not torch.is_grad_enabled()
        made.append(len(x))
        callers.add(threading.get_ident())

    sizes = tuple((length,) for length in range(1, 41))
    inputs: dict[traffic.Size, tuple[torch.Tensor, ...]] = {size: (torch.zeros(*size),) for size in sizes}
    for threads in (1, 4):
        made.clear()
        latencies = replay.replayed(call, traffic.Traffic(sizes, threads), inputs, "cpu")
        assert sorted(made) == list(range(1, 41))
        assert len(latencies.seconds) == 40
        assert latencies.busy > 0
    assert len(callers) == 5


def test_bursts_begin_after_a_pause_that_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    calls = traffic.Traffic(((1,),) * 7, burst=3)
    latencies = replay.replayed(lambda x: x, calls, {(1,): (torch.zeros(1),)}, "cpu")
    assert pauses == [traffic.IDLE_SECONDS] * 3
    assert latencies.busy == sum(latencies.seconds)


def test_figures_are_of_all_calls_and_ratios_of_those_after_the_second() -> None:
    cold = replay.Latencies((9e-3, 8e-3, *[2e-3] * 97, 5e-3), 0.25)
    warm = replay.Latencies((1e-3,) * 100, 0.1)
    figures = {"p50_us": 2000, "p99_us": 8000, "worst_us": 9000, "first_us": 9000, "calls_per_s": 400}
    assert cold.figures() == figures
    assert cold.relative(warm) == {"warm_p50_us": 1000, "warm_p99_us": 1000, "p50_of_warm": 2, "p99_of_warm": 5}


def test_new_and_known_sizes_take_turns() -> None:
    known = traffic.traffic("random", RANGES, 20).sizes
    new = traffic.paired(RANGES, known, 30).sizes
    assert len(set(new[::2])) == 30
    assert {*new[1::2]} <= {*known}
    assert not {*new[::2]} & {*known, traffic.outside(RANGES)}
    assert traffic.paired([range(1, 4)], [(1,), (3,)], 30).sizes == ()
    latencies = replay.Latencies((3e-3, 1e-3, 3e-3, 2e-3, 9e-3, 2e-3), 0.02)
    assert latencies.of_pairs() == {"new_p50_us": 3000, "known_p50_us": 2000, "new_of_known": 1.5}
    empty = replay.replayed(lambda x: x, traffic.Traffic(()), {}, "cpu")
    assert empty.of_pairs() == {}


@pytest.mark.pages
@pytest.mark.parametrize("name", ["bert-base-masked", "mlp-3x128-relu", "diffusion-block"])
def test_a_model_is_exported_with_its_ranges(name: str) -> None:
    model = served.Served(name, "f32", 1, "cpu")
    with torch.device("meta"):
        exported = model.exported("meta")
    ranges = {(int(one.lower), int(one.upper)) for one in exported.range_constraints.values()}
    assert ranges >= {(values[0] // values.step, values[-1] // values.step) for values in model.ranges}
    first = traffic.outside(model.ranges)
    cut = served.cut(model.inputs(), model.axes, first)
    for one, whole in zip(cut, model.inputs(), strict=True):
        expected = list(whole.shape)
        for axis, length in zip(model.axes, first, strict=True):
            if axis.inputs is None or one is cut[0]:
                expected[axis.at] = length
        assert list(one.shape) == expected


@pytest.mark.pages
@pytest.mark.long
def test_a_run_prints_and_writes_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, folder = tmp_path / "cpu.json", tmp_path / "built"
    failed = folder / served.Served("mlp-3x128-relu", "f32", 1, "cpu").label / "aoti"
    failed.mkdir(parents=True)
    (failed / "built.json").write_text(json.dumps({"absent": "no compiler"}))

    def run(*arguments: str) -> tuple[int, str]:
        given = ["--device", "cpu", "--only", "mlp-3x128-relu", "--dtype", "f32", "--layers", "1", "--calls", "6"]
        where = ["--folder", str(folder), "--patterns", "random"]
        monkeypatch.setattr(sys, "argv", ["serving.py", str(out), *given, *where, *arguments])
        return serving.main(), capsys.readouterr().out

    status, printed = run("--targets", "torchscript", "--peers", "eager", "aoti")
    assert status == 0
    assert "no compiler" in printed
    rows = json.loads(out.read_text())["rows"]
    absent, ours, eager = rows
    assert [row["contestant"] for row in rows] == ["aoti", "fuseconv torchscript", "eager"]
    assert absent["absent"] == "no compiler"
    for row in (ours, eager):
        assert row["new_of_known"] == pytest.approx(row["new_p50_us"] / row["known_p50_us"], rel=0.02)
        assert row["worst_us"] >= row["p99_us"] >= row["p50_us"] > 0
        assert min(row[name] for name in ("calls_per_s", "warm_p50_us", "p50_of_warm", "p99_of_warm")) > 0


def test_rows_are_tables_of_the_page() -> None:
    key = {"model": "bert", "dtype": "f16", "pattern": "zipf"}
    figures = {"start_s": 1.5, "p50_us": 1234.5, "p99_us": 4000.0, "worst_us": 40000.0, "calls_per_s": 812.3}
    more = {"p50_of_warm": 1.01, "p99_of_warm": 3.2, "reserved_mb": 512, "device_mb": 1024}
    absent: dict[str, Any] = {**key, "contestant": "onnxruntime", "absent": "missing"}
    rows = [{**key, "contestant": "aoti", **figures, **more}, absent]
    *_, served_row, gap, absent_row = render.serving_lines(rows)
    assert served_row == "| bert | f16 | zipf | aoti | 1.234 | 4.000 | 40.000 | 812 | 1.01 | 3.20 | 512 | 1024 |"
    assert (gap, absent_row) == ("", "Not measured: onnxruntime (missing).")
