"""bench/: every op has a case, the benchmark runs on this machine, and the page shows the results in the files."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from torch import Tensor

from fuseconv import ops, sources

BENCH = ROOT / "bench"
sys.path.insert(0, str(BENCH))

import cases  # noqa: E402  # scripts, not a package
import clock  # noqa: E402
import counters  # noqa: E402
import public_models  # noqa: E402
import public_zoo  # noqa: E402
import public_zoo_hub  # noqa: E402
import record  # noqa: E402
import render  # noqa: E402

bench = importlib.import_module("ops")

HELPERS = {"activation_backward", "gated_act_backward", "norm_backward"}
"""Ops that are the gradients of others: a model that learns calls them."""


def test_every_op_has_a_case_on_each_device() -> None:
    for device in ("cpu", "cuda"):
        named = {case.op for case in cases.cases(device)}
        assert {op.name for op in ops.OPS} - named - HELPERS == set()


def test_runs_of_one_machine_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    run = {"device": "a GPU", "versions": {"torch": "2"}}
    more = {"device": "a GPU", "versions": {"torch": "2", "onnxruntime": "1"}}
    record.write(path, [{"op": "a", "us": 1}, {"op": "b", "us": 2}], run, ["op"])
    record.write(path, [{"op": "b", "us": 3}], more, ["op"])
    record.write(path, [{"op": "c", "us": 4}], run, ["op"])
    rows = [{"op": "a", "us": 1}, {"op": "b", "us": 3}, {"op": "c", "us": 4}]
    assert json.loads(path.read_text()) == {**more, "rows": rows}
    for other in ({**run, "device": "another"}, {**run, "versions": {"torch": "3"}}):
        with pytest.raises(SystemExit, match="name another file"):
            record.write(path, [], other, ["op"])


def test_no_row_is_measured_twice() -> None:
    for device in ("cpu", "cuda"):
        keys = [(case.op, case.act, case.dtype, case.shape) for case in cases.cases(device)]
        assert len(keys) == len(set(keys))


@pytest.mark.pages
def test_a_run_prints_and_merges_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cpu.json"

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["ops.py", str(out), "--device", "cpu", "--rounds", "1", *arguments])
        with torch._dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256):  # put back what a run sets
            bench.main()
        return capsys.readouterr().out

    printed = run("--only", "linear_act", "--act", "relu", "--dtype", "f32", "--peers", "eager", "--seconds", "0")
    first = json.loads(out.read_text())
    row = first["rows"][0]
    assert "linear_act" in printed
    assert "cases were left: out of time" in printed
    assert row["shape"] == [1, 3072, 768]
    assert row["flops"] == 2 * 1 * 3072 * 768
    assert row["bytes"] == 4 * (768 + 3072 * 768 + 3072 + 3072)
    assert row["compile_us"] is None
    for name in ("us", "limit_us", "eager_us"):
        assert row[name] > 0
    run("--only", "add_relu", "--dtype", "f16", "--peers", "eager", "--seconds", "0")
    both = json.loads(out.read_text())
    assert [one["op"] for one in both["rows"]] == ["linear_act", "add_relu"]
    assert both["rows"][0] == row


def test_a_case_that_is_wrong_stops_the_run() -> None:
    case = next(case for case in cases.cases("cpu") if case.op == "add_relu")
    operands = cases.draw("cpu", "f32", ((4, 8), (4, 8)))
    assert bench.check(case, operands) < 3
    with pytest.raises(AssertionError, match=r"add_relu .* error"):
        bench.check(replace(case, ours=lambda a, b: torch.relu(a - b)), operands)


def test_ratios_are_of_the_same_round() -> None:
    times = {"us": [1.0, 2.0, 4.0], "again": [1.0, 2.2, 4.0], "eager_us": [2.0, 4.0, 7.0]}
    assert clock.ratio(times, "eager_us", "us") == 2
    assert clock.noise(times, "us") == 0


def test_counts_of_a_kernel_are_a_row_of_the_page() -> None:
    case = next(case for case in cases.cases("cuda") if case.op == "rms_norm")
    kernel = {metric: "1,000" if metric.startswith("smsp__inst") else "2" for metric in counters.METRICS}
    kernel["Kernel Name"] = "void ours::(anonymous namespace)::norm_rows<float, (int)4>(Arguments<float>)"
    kernel["sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"] = "50.5"
    kernel["smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"] = "7"
    row = counters.row(case, "ours", 8000, kernel, {"gpu__time_duration.sum": "ns"})
    assert (row["kernel"], row["us"], row["instructions"]) == ("norm_rows", 0.002, 4.0)
    assert (row["pipe"], row["stall"]) == ("xu 50.50", "barrier 7.00")
    assert "| rms_norm |  | f32 | 16384, 4096 | ours | 0.0 | 2 % | 2 % | 4.0 | xu 50 % | barrier |" in list(
        render.counter_lines([row])
    )


def test_every_table_is_what_the_files_hold() -> None:
    pages = render.pages()
    assert {ROOT / "docs" / "performance.md", ROOT / "docs" / "performance" / "linear.md"} <= set(pages)
    for path in pages:
        page = path.read_text()
        assert len(render.MARKED.findall(page)) == page.count(render.MARK), path
        assert render.rendered(page, path.parent) == page, path


def test_a_wrong_marker_is_an_error() -> None:
    with pytest.raises(ValueError, match="no row of"):
        list(render.table("h200_gemm_linear_act.json op=other", render.DOCS))
    with pytest.raises(ValueError, match="one device and one torch, not of"):
        list(render.table("h100_models_wide.json h200_models_wide.json", render.DOCS))
    with pytest.raises(ValueError, match="one device and one torch, not of"):
        list(render.table("op=linear_act", render.DOCS))


def test_a_table_of_several_runs_shows_the_last_row_of_each_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def row(model: str, ms: float, peers: dict[str, float]) -> dict[str, Any]:
        case = {"model": model, "dtype": "f16", "shape": [1, 8], "layers": None}
        figures = {"targets": {"aoti": ms}, "ratios": peers, "ratio": min(peers.values()), "noise": 0.01}
        return {**case, **figures, "ours": "aoti", "best_peer": min(peers)}

    run = {"device": "a GPU", "versions": {"torch": "2"}}
    runs = {"old": [row("b", 2, {"eager": 1.5}), row("c", 3, {"eager": 1.0})], "new": [row("c", 4, {"aoti": 0.5})]}
    for name, rows in {**runs, "newer": [row("a", 1, {"aoti": 3})]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**run, "rows": rows}))
    monkeypatch.setattr(render, "RESULTS", tmp_path)
    assert list(render.table("old.json new.json newer.json", tmp_path / "pages")) == [
        "a GPU, torch 2; [old.json](../old.json), [new.json](../new.json), [newer.json](../newer.json).",
        "",
        "| model | dtype | shape | ours | ms | eager | aoti | nearest |",
        "|---|---|---|---|--:|--:|--:|---|",
        "| a | f16 | 1, 8 | aoti | 1.000 |  | 3.00x | aoti |",
        "| b | f16 | 1, 8 | aoti | 2.000 | 1.50x |  | eager |",
        "| c | f16 | 1, 8 | aoti | 4.000 |  | 0.50x | aoti |",
        "",
        "The nearest peer takes 0.50 to 3.00 times as long as the bundle; the geometric mean is 1.31.",
        "The bundle is slower, beyond the noise, in 1 of 3 rows.",
    ]


class Kept(torch.nn.Module):
    """Keeps what it computed, as the bias of x-transformers does: torch.export puts tensors of its trace there."""

    kept: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = torch.arange(4.0).cos()
        return x * self.kept


def parametrized() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 8)), torch.nn.GELU())


@pytest.mark.parametrize("build", [lambda: torch.nn.Sequential(Kept(), torch.nn.ReLU()), parametrized])
def test_a_public_model_is_saved_so_that_it_is_read_again(
    build: Callable[[], torch.nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = public_zoo.Entry("package", "model", build, ("input=f32[b:1..4,4]",))
    monkeypatch.setattr(public_zoo_hub, "ENTRIES", (entry,))
    read = []

    def convert(model: Path, options: sources.Options, targets: Sequence[str], output: Path) -> dict[str, Any]:
        read.append(sources.read(model, options=options))
        return {"converted": dict.fromkeys(targets, True), "skipped": {}, "error": "", "output": output.name}

    monkeypatch.setattr(public_models, "_convert", convert)
    row = public_models.try_model(entry)
    assert (row["exports"], row["whole"], len(read)) == (True, True, 1), row
    torch.manual_seed(0)
    torch.testing.assert_close(read[0].module(torch.ones(2, 4)), build()(torch.ones(2, 4)))
