"""`fuseconv bench`: what it times, with which inputs, and its messages for targets that do not run here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fuseconv import cli
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError, UsageError
from fuseconv.measure import latency
from fuseconv.measure.cold_start import ColdStart, cold_start


class Wide(nn.Module):
    """A linear layer and its activation; a scalar of the model, so that its hash is its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds wide.pt2, other.pt2, and wide.fuseconv, a bundle of two targets with the dim `rows`."""
    folder = tmp_path_factory.mktemp("latency")
    with torch.random.fork_rng():
        for seed, name in enumerate(("wide", "other")):
            rows = torch.export.Dim("rows", min=1, max=64)
            exported = torch.export.export(Wide(seed).eval(), (torch.randn(3, 8),), dynamic_shapes=({0: rows},))
            torch.export.save(exported, folder / f"{name}.pt2")
    targets = ["--target", "export", "--target", "torchscript"]
    assert cli.main(["convert", str(folder / "wide.pt2"), *targets]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = cli.main(["bench", *(str(argument) for argument in arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.pages
def test_every_target_and_the_original_are_timed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, record = run(
        capsys, folder / "wide.fuseconv", "--rounds", 5, "--shape", "dim0=7", "--against", folder / "wide.pt2"
    )
    found = record["result"]
    assert status == 0
    assert found["inputs"] == {"x": "f32[7,8]"}
    assert found["rounds"] == 5
    assert found["failures"] == {}
    assert [row["name"] for row in found["rows"]] == ["export", "torchscript", "eager"]
    for row in found["rows"]:
        assert 0 < row["median_ms"] <= row["p90_ms"] <= row["p99_ms"]
        assert row["calls_per_second"] > 0
    for row in found["rows"][:2]:
        cold = row["cold"]
        assert cold["seconds"] > cold["load_seconds"] > 0
        assert cold["first_call_ms"] > 0
        assert cold["memory"] > 0
        assert cold["device_memory"] is None
    assert found["rows"][2]["cold"] is None


def test_inputs_come_from_a_file_and_the_table_says_so(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"x": torch.randn(5, 8)}, tmp_path / "in.pt")
    capsys.readouterr()
    arguments = ["--target", "export", "--rounds", "2", "--inputs", str(tmp_path / "in.pt")]
    assert cli.main(["bench", str(folder / "wide.fuseconv"), *arguments]) == 0
    printed = capsys.readouterr().out
    assert "2 interleaved calls per target with x=f32[5,8]" in printed
    assert "torchscript" not in printed


FAILURES = {
    "no bundle": (["{}/absent"], "usage", "does not exist"),
    "no target": (["{}/wide.fuseconv", "--target", "aoti"], "usage", "no target aoti"),
    "no dim": (["{}/wide.fuseconv", "--shape", "rows=3"], "usage", "no dim rows"),
    "a size outside": (["{}/wide.fuseconv", "--shape", "dim0=65"], "usage", "65 is outside dim0:1..64"),
    "two sizes": (["{}/wide.fuseconv", "--shape", "dim0=3", "--shape", "dim0=4"], "usage", "two sizes"),
    "not a size": (["{}/wide.fuseconv", "--shape", "dim0"], "usage", "cannot be parsed"),
    "sizes and a file": (
        ["{}/wide.fuseconv", "--shape", "dim0=3", "--inputs", "{}/other.pt2"],
        "usage",
        "cannot be combined with --inputs",
    ),
    "no rounds": (["{}/wide.fuseconv", "--rounds", "0"], "usage", "0 is not in the range"),
    "another model": (
        ["{}/wide.fuseconv", "--against", "{}/other.pt2", "--rounds", "1"],
        "usage",
        "is not the model from which the bundle was converted",
    ),
}


def test_a_size_that_is_no_multiple_is_refused() -> None:
    contract = Contract(parse_inputs(["x=f32[n:8..64:8]"]), ())
    with pytest.raises(UsageError, match="20 is not a multiple of 8") as caught:
        latency.chosen_inputs(contract, None, {"n": 20})
    assert caught.value.fix == "choose 16"
    assert latency.chosen_inputs(contract, None, {"n": 16})[0].shape == (16,)


@pytest.mark.parametrize("name", FAILURES)
def test_failures_are_of_the_command_line(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, code, words = FAILURES[name]
    status, record = run(capsys, *(argument.format(folder) for argument in arguments))
    assert status == 2
    assert record["error"]["code"] == code
    assert words in record["error"]["message"]
    assert record["error"]["hint"]


def test_a_target_that_does_not_run_here_is_named_and_the_others_are_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def only_export(bundle: Path, target: str, inputs: tuple[torch.Tensor, ...], seconds: float) -> ColdStart:
        if target != "export":
            raise UpstreamError("it ran out of memory", where=target, fix="free some")
        return cold_start(bundle, target, inputs, seconds)

    monkeypatch.setattr(latency, "cold_start", only_export)
    status, record = run(capsys, folder / "wide.fuseconv", "--rounds", 1)
    assert status == UpstreamError.exit_status
    assert [row["name"] for row in record["result"]["rows"]] == ["export"]
    assert record["result"]["failures"] == {"torchscript": "it ran out of memory"}
    assert record["error"]["message"] == "it ran out of memory"


def test_a_process_that_fails_says_why(folder: Path) -> None:
    with pytest.raises(UpstreamError, match=r"(?s)exit 1.*input x has size 9 at axis 1"):
        cold_start(folder / "wide.fuseconv", "export", (torch.randn(3, 9),))


def test_a_target_that_takes_too_long_is_left_out(folder: Path) -> None:
    bundle, inputs = folder / "wide.fuseconv", (torch.randn(3, 9),)
    with pytest.raises(UpstreamError, match=r"did not load and call the target export within 0\.2 s\n") as caught:
        cold_start(bundle, "export", inputs, 0.2)  # the import of torch alone takes longer
    assert "leave the target out" in caught.value.fix
    with pytest.raises(UpstreamError, match="did not load and call the target"):
        latency.measure(bundle, rounds=1, time_limit=0.2)


def test_percentiles_are_times_that_were_measured() -> None:
    times = [4.0, 1.0, 3.0, 2.0]
    assert [latency.percentile(times, part) for part in (1, 50, 75, 90, 99)] == [1, 2, 3, 4, 4]


def test_inputs_are_drawn_at_the_sizes_asked_for() -> None:
    contract = Contract(parse_inputs(["ids=i64[batch:1..8,seq:2..64]", "mask=i64[batch,seq]"]), ())
    ids, mask = latency.chosen_inputs(contract, None, {"seq": 33})
    assert ids.shape == mask.shape
    assert ids.shape[1] == 33
    assert 1 <= ids.shape[0] <= 8
