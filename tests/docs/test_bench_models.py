"""bench/models.py: its models exist, its rows are measured, merged and plotted, and nothing is omitted silently."""

from __future__ import annotations

import importlib
import io
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from support import ROOT
from torch.utils import _pytree as pytree

from fuseconv.commands import speeds
from fuseconv.measure.cold_start import ColdStart
from fuseconv.measure.latency import Latencies, Latency

sys.path.insert(0, str(ROOT / "bench"))

import changing  # scripts, not a package
import plot
import rows
import together
import zoo

models = importlib.import_module("models")


FIRST = {entry.name: entry for entry in reversed(zoo.ENTRIES)}


@pytest.mark.pages
@pytest.mark.parametrize("name", FIRST)
def test_a_model_takes_the_inputs_drawn_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = FIRST[name]
    inputs = entry.draw(entry.shape, torch.Generator().manual_seed(0))
    with torch.device("meta"), torch.no_grad():
        model = entry.build(1).eval()  # its package is imported here: transformers registers no outputs while compiling
        monkeypatch.setattr(torch.compiler, "_is_compiling_flag", True)  # so that transformers reads no value of a mask
        results = model(*(one.to("meta") for one in inputs))
    assert {result.shape[0] for result in pytree.tree_leaves(results)} == {entry.shape[0]}
    assert {axis.at for axis in entry.axes} <= set(range(len(entry.shape)))


def test_no_model_is_measured_twice() -> None:
    assert len({entry.at for entry in zoo.ENTRIES}) == len(zoo.ENTRIES)


def test_a_batch_norm_of_a_model_is_not_the_identity() -> None:
    (entry,) = (entry for entry in zoo.ENTRIES if entry.name == "resnet-18")
    module, inputs = entry.made(torch.float32, None)
    norms = [part for part in module.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert len(norms) == 20
    for norm in norms:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert norm.running_mean.std() > 0
        assert norm.running_var.std() > 0
        assert not norm.training
    again, _ = entry.made(torch.float32, None)
    small = inputs[0][:1, :, :64, :64]
    assert torch.equal(module(small)[0], again(small)[0])


@pytest.mark.pages
def test_a_model_keeps_nothing_of_the_dtype_in_which_it_was_made() -> None:
    """LeVit in eval mode keeps the attention biases of its first call, which draws the statistics of batch norms."""
    (entry,) = (entry for entry in zoo.ENTRIES if entry.name == "levit-128s")
    with torch.no_grad():
        (logits,) = entry.module(torch.bfloat16, 1)(torch.zeros(1, *entry.shape[1:], dtype=torch.bfloat16))
    assert logits.dtype == torch.bfloat16


@pytest.mark.pages
@pytest.mark.long
def test_a_run_prints_and_joins_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cpu.json"

    def run(*arguments: str) -> tuple[str, Any]:
        given = ["--device", "cpu", "--rounds", "1", "--only", "mlp-3x128-relu", "--dtype", "f32", "--layers", "1"]
        monkeypatch.setattr(sys, "argv", ["models.py", str(out), *given, "--targets", "export", *arguments])
        assert models.main() == 0
        return capsys.readouterr().out, json.loads(out.read_text())

    printed, contents = run("--peers", "eager", "onnxruntime_optimized")
    (row,) = contents["rows"]
    assert "mlp-3x128-relu, 1 layers" in printed
    assert row["shape"] == [4096]
    assert row["ours"] == "export"
    assert row["ours_ms"] == row["targets"]["export"] > 0
    assert row["ours_graph_ms"] is None
    assert row["best_peer"] == "eager"
    assert row["ratio"] == row["ratios"]["eager"] > 0
    assert row["peers_absent"]["compile"] == rows.NOT_ASKED
    assert "no optimizer for such models" in row["peers_absent"]["onnxruntime_optimized"]
    assert "onnxruntime_optimized absent: LookupError" in printed
    assert set(row["peers"]) | set(row["peers_absent"]) == set(models.PEERS)
    again = run("--peers")[1]["rows"]
    assert len(again) == 1
    assert again[0]["peers"] == row["peers"]
    assert again[0]["peers_absent"] == row["peers_absent"]
    assert again[0]["ratio"] == row["ratio"]


@pytest.mark.pages
@pytest.mark.long
def test_a_run_under_changing_sizes_leaves_out_what_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "cpu.json"
    given = ["--device", "cpu", "--rounds", "1", "--only", "mlp-3x128-relu", "--dtype", "f32", "--layers", "1"]
    given += ["--sizes", "changing", "--targets", "export", "--peers", "eager", "eager_channels_last", "--resume"]
    monkeypatch.setattr(sys, "argv", ["models.py", str(out), *given])
    assert models.main() == 0
    contents = json.loads(out.read_text())
    (row,) = contents["rows"]
    assert row["shape"] == [[1, 4096]]
    assert (row["ours"], row["best_peer"]) == ("export", "eager")
    assert row["ratio"] == row["ratios"]["eager"] > 0
    assert row["first_ratio"] == row["first"]["eager"] / row["first"]["fuseconv export"]
    assert row["peers_absent"] == dict.fromkeys(("aoti", "compile", "onnxruntime"), rows.NOT_ASKED)
    assert "changing sizes, met for the first time: " in capsys.readouterr().out
    assert models.main() == 0
    assert json.loads(out.read_text()) == contents


def test_random_sizes_are_of_the_ranges_and_all_of_them_where_there_are_few() -> None:
    ranges = (range(1, 9), range(64, 513, 32))
    found = changing.sizes(ranges)
    assert found == changing.sizes(ranges)
    assert len(set(found)) == changing.SIZES
    assert all(length in values for one in found for length, values in zip(one, ranges, strict=True))
    assert sorted(changing.sizes((range(1, 4),))) == [(1,), (3,)]


@pytest.mark.pages
def test_processes_prepare_in_company_and_measure_alone(tmp_path: Path) -> None:
    """One that fails, or takes longer than it may, does not hold up the others; none is begun when time is up."""
    script = tmp_path / "one.py"
    script.write_text(
        f"""import sys, time
sys.path.insert(0, {str(ROOT / "bench")!r})
from pathlib import Path
from turns import Turns
folder, prepares, name = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
turns = Turns(folder)
with turns.in_company():
    time.sleep(prepares)
with turns.alone():
    with (folder.parent / "log").open("a") as log:
        for word in ("begin", "end"):
            print(word, name, file=log, flush=True)
            time.sleep(0.1)
sys.exit(name == "failing")
"""
    )
    folder = tmp_path / "turns"
    folder.mkdir()
    seconds = {"first": "0.2", "second": "0.1", "failing": "0", "slow": "60"}
    commands = {name: [sys.executable, str(script), str(folder), taken, name] for name, taken in seconds.items()}
    failed = together.run(commands, folder, together.Limits(4, 3, time.time() + 60), None)
    assert failed == {"failing": "exit status 1", "slow": "more than 3 s in company"}
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [line[0] for line in lines] == ["begin", "end"] * 3
    assert all(begin[1] == end[1] for begin, end in zip(lines[::2], lines[1::2], strict=True))
    slow = {name: commands[name] for name in ("first", "slow")}
    failed = together.run(slow, folder, together.Limits(4, 60, time.time() + 12), None)
    assert failed == {"slow": "not prepared while others waited to measure"}
    late = together.run(commands, folder, together.Limits(1, 3, time.time() - 1), None)
    assert set(late.values()) == {"not begun: out of time"}


def test_means_name_who_loses_beyond_noise() -> None:
    fixed = [row("a", peers={"eager": ratio}) | {"model": f"m{ratio}", "shape": [8]} for ratio in (4.0, 0.995, 0.5)]
    changed = row("a", peers={"eager": 2.0}) | {"model": "n", "shape": [[1, 8]], "first_ratio": 0.25}
    lines = list(rows.means([*fixed, changed]))
    assert lines[0].startswith("fixed sizes: 1.258x")
    assert lines[0].endswith("of 3; 1 below 1 beyond noise: m0.5")
    assert lines[1].endswith("of 1; none below 1 beyond noise")
    assert lines[2].endswith("of 1; 1 below 1 beyond noise: n")


def row(
    artifact: str, *, peers: Mapping[str, float] = {}, absent: Mapping[str, str] = {}, off: Mapping[str, str] = {}
) -> dict[str, Any]:
    ratios = dict(peers)
    return rows.summarized(
        {
            "artifact": artifact,
            "targets": {"aoti": 2.0, "export": 3.0, "aoti+graph": 1.0},
            "peers": ratios,
            "ratios": ratios,
            "peers_absent": dict(absent),
            "peers_off": dict(off),
            "noise": 0.01,
        }
    )


def test_the_figures_of_a_row_follow_from_its_times() -> None:
    summary = row("a", peers={"eager": 3.0, "aoti+graph": 1.5, "compile": 2.0})
    assert (summary["ours_ms"], summary["ours_graph_ms"]) == (2, 1)
    assert (summary["best_peer"], summary["ratio"]) == ("aoti+graph", 1.5)


def test_rows_of_one_artifact_are_joined_and_of_another_replaced() -> None:
    old = row("a", peers={"eager": 3.0, "aoti": 2.0}, absent={"compile": "out of time"}, off={"aoti": "rmse"})
    asked = {"eager": rows.NOT_ASKED, "compile": rows.NOT_ASKED}
    new = row("a", peers={"aoti": 2.5}, absent=asked)
    joined = rows.joined(old, new)
    assert joined["ratios"] == {"eager": 3, "aoti": 2.5}
    assert joined["peers_absent"] == {"compile": "out of time"}
    assert joined["peers_off"] == {}
    assert joined["best_peer"] == "aoti"
    assert rows.joined(old, row("b")) == row("b")


def test_a_peer_that_fails_or_computes_something_else_is_named() -> None:
    truth = torch.linspace(-1, 1, 100, dtype=torch.float64)
    problem = SimpleNamespace(device="cpu")
    contestants = models.Contestants(problem, SimpleNamespace(original=(truth.float(),), fp64=(truth,)))

    def broken(problem: object, graph: object) -> None:
        raise RuntimeError("\n no such kernel\nand more")

    contestants.add("right", lambda problem, graph: lambda: (truth.float(),))
    contestants.add("wrong", lambda problem, graph: lambda: truth.float() * 1.01)
    contestants.add("broken", broken)
    assert set(contestants.calls) == {"right", "wrong"}
    assert "rmse against float64" in contestants.off["wrong"]
    assert set(contestants.off) == {"wrong"}
    assert contestants.absent == {"broken": "RuntimeError: no such kernel"}


def test_rows_are_drawn(tmp_path: Path) -> None:
    drawn = row("a", peers={"eager": 3.0, "aoti+graph": 1.5}) | {
        "model": "mlp",
        "dtype": "f16",
        "shape": [8],
        "layers": None,
    }
    contents = {"device": "a machine", "versions": {"torch": "2"}, "rows": [drawn]}
    plot.draw(contents, tmp_path / "one.png")
    plot.draw({**contents, "rows": [drawn] * 4}, tmp_path / "four.png")
    one, four = (imread(tmp_path / name) for name in ("one.png", "four.png"))
    assert one.shape[1] == four.shape[1]
    assert four.shape[0] > one.shape[0]
    assert one.std() > 0.01
    with pytest.raises(ValueError, match="no row has a peer"):
        plot.draw({**contents, "rows": [drawn | {"ratios": {}}]}, tmp_path / "none.png")


def printed_tables() -> list[str]:
    """What `fuseconv bench` and bench/models.py print of the files in bench/results."""
    results = ROOT / "bench" / "results"
    told = json.loads((results / "cpu_bench.json").read_text())
    told_rows = tuple(Latency(**{**one, "cold": one["cold"] and ColdStart(**one["cold"])}) for one in told["rows"])
    found = Latencies(told["inputs"], told["rounds"], told_rows, {})
    table = rows.table(json.loads((results / "cpu_models.json").read_text())["rows"])
    tables = []
    for show in (lambda console: speeds.print_latencies(console, found), lambda console: console.print(table)):
        printed = io.StringIO()
        console = Console(width=200, file=printed, soft_wrap=True)
        show(console)
        tables.append("\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines()))
    return tables


def test_the_page_is_what_the_files_hold() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for table in printed_tables():
        assert f"```\n{table}\n```" in page
