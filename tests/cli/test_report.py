"""`fuseconv report`: one file for one bundle or two, and wrong calls."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.reported import SOURCE, data_of

from fuseconv import cli
from fuseconv.commands.demonstration import model_folder
from fuseconv.report import page


@pytest.fixture(autouse=True)
def without_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "BUILT", SOURCE)


def report(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    capsys.readouterr()
    status = cli.main(["report", *map(str, words), "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_one_bundle_and_what_it_lacks(
    converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")  # a path on one line
    output = tmp_path / "report.html"
    assert cli.main(["report", str(converted / "model.fuseconv"), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert str(output) in said
    assert "fuseconv report model.fuseconv --against MODEL" in said
    assert "no graph" not in said
    (found,) = data_of(output)["bundles"]
    assert found["name"] == "model.fuseconv"
    assert found["captured"]["nodes"]
    assert output.stat().st_size < 300_000


@pytest.mark.long
def test_the_pretrained_model_of_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For one target and small inputs. tests/browser opens the report of the whole demo."""
    bundle, output, layers = tmp_path / "minilm.fuseconv", tmp_path / "report.html", 6
    shapes = [f"{name}=i64[batch:1..2,seq:2..16]" for name in ("input_ids", "attention_mask", "token_type_ids")]
    inputs = [word for shape in shapes for word in ("--input", shape)]
    assert cli.main(["convert", str(model_folder()), "--target", "export", "-q", "-o", str(bundle), *inputs]) == 0
    assert report(capsys, bundle, "-o", output)[0] == 0
    (found,) = data_of(output)["bundles"]
    matches = Counter(match["rule"] for match in found["matches"])
    assert (matches["add-layer-norm"], matches["linear-act"]) == (2 * layers, layers + 1)  # and the pooler
    assert {row["ok"] for row in found["parity"]} == {True}
    captured, fused = found["captured"]["nodes"], found["fused"]["nodes"]
    assert {name for match in found["matches"] for name in match["nodes"]} <= {node["name"] for node in captured}
    assert Counter(node["op"] for node in fused)["fuseconv.linear_act.default"] == matches["linear-act"]
    assert any("modeling_bert" in file for file in found["captured"]["files"])


def test_two_bundles_side_by_side(
    converted: Path, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "report.html"
    status, found = report(capsys, bundle, converted / "model.fuseconv", "-o", output)
    assert (status, found["result"]["bundles"]) == (0, ["block.fuseconv", "model.fuseconv"])
    assert found["result"]["size"] == output.stat().st_size
    assert [one["captured"] is None for one in data_of(output)["bundles"]] == [True, False]


def test_every_method_is_shown(generating_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, output = generating_folder / "llama.fuseconv", tmp_path / "report.html"
    assert report(capsys, bundle, "-o", output)[0] == 0
    names = [one["name"] for one in data_of(output)["bundles"]]
    assert names == [f"llama.fuseconv: {name}" for name in ("prefill", "decode")]
    assert report(capsys, bundle, "--method", "decode", "-o", output)[0] == 0
    assert [one["name"] for one in data_of(output)["bundles"]] == names[1:]


def test_the_errors_of_blame(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, blamed, output = str(converted / "model.fuseconv"), tmp_path / "blame.json", tmp_path / "report.html"
    model = str(converted / "model.pt2")
    assert cli.main(["blame", bundle, "--against", model, "--target", "export", "--json", "-o", str(tmp_path)]) == 0
    blamed.write_text(capsys.readouterr().out)
    assert report(capsys, bundle, "--blame", blamed, "-o", output)[0] == 0
    (found,) = data_of(output)["bundles"]
    nodes = [node["name"] for node in found["captured"]["nodes"]]
    borders = [border["node"] for border in found["growth"]["borders"]]
    assert borders == sorted(borders, key=nodes.index)
    assert {border["rule"] for border in found["growth"]["borders"]} & {match["rule"] for match in found["matches"]}


def test_the_errors_are_measured(converted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "report.html"
    bundle, model = converted / "model.fuseconv", converted / "model.pt2"
    for words in (["--against", model], ["--growth"]):
        assert report(capsys, bundle, *words, "-o", output)[0] == 0
        (found,) = data_of(output)["bundles"]
        assert found["growth"]["borders"]


@pytest.mark.pages
def test_a_model_is_converted_and_its_errors_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),)), tmp_path / "linear.pt2")
    status, found = report(capsys, tmp_path / "linear.pt2")
    assert (status, found["result"]["report"]) == (0, str(tmp_path / "linear.html"))
    assert {path.name for path in tmp_path.iterdir()} == {"linear.pt2", "linear.html"}
    (bundle,) = data_of(tmp_path / "linear.html")["bundles"]
    assert bundle["name"] == "linear.fuseconv"
    assert bundle["growth"]["borders"]


WRONG: dict[str, tuple[list[str], int, str]] = {
    "nothing": ([], 2, "Missing argument"),
    "three": (["{bundle}", "{bundle}", "{bundle}"], 2, "3 bundles are given"),
    "absent": (["{scratch}/absent.fuseconv"], 2, "does not exist"),
    "not a model": (["{bundle}/plan.json"], 3, "not a model"),
    "errors twice": (["{bundle}", "--growth", "--blame", "x"], 2, "--blame cannot be combined with --growth"),
    "no original": (["{bundle}", "--against", "{scratch}/absent.pt2"], 6, "no such file"),
    "an option of the original": (["{bundle}", "--dtype", "f16"], 2, "--dtype applies only to the original"),
    "damaged": (["{damaged}"], 3, "plan.json"),
    "inside of the bundle": (["{bundle}", "-o", "{bundle}/report.html"], 2, "inside of the bundle"),
    "a folder": (["{bundle}", "-o", "{scratch}"], 6, "the output path is a folder"),
    "no folder": (["{bundle}", "-o", "{scratch}/a/report.html"], 6, "does not exist"),
    "no such method": (["{bundle}", "--method", "decode"], 2, "no method decode"),
    "no errors": (["{bundle}", "--blame", "{scratch}/absent.json"], 6, "cannot be read"),
    "other errors": (["{bundle}", "--blame", "{bundle}/manifest.json"], 2, "not the output of"),
    "errors of two": (
        ["{bundle}", "--blame", "x", "--blame", "x"],
        2,
        "2 --blame files are given, but the report shows only 1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(
    name: str,
    bundle: Path,
    bundle_copy: Path,
    converted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (bundle_copy / "plan.json").write_text("{}")
    words, expected, text = WRONG[name]
    places = {"bundle": bundle, "scratch": tmp_path, "model": converted / "model.pt2", "damaged": bundle_copy}
    status, found = report(capsys, *(word.format(**places) for word in words))
    assert (status, found["ok"]) == (expected, False)
    assert text in found["error"]["message"]


def test_a_report_needs_no_torch(converted: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fuseconv import cli; from fuseconv.report import page; "
        "page.BUILT = Path(sys.argv[1]); status = cli.main(['report', *sys.argv[2:]]); "
        "sys.exit(100 if 'torch' in sys.modules else status)"
    )
    words = [str(SOURCE), str(converted / "model.fuseconv"), "-o", str(tmp_path / "report.html")]
    assert subprocess.run([sys.executable, "-c", code, *words], capture_output=True).returncode == 0
