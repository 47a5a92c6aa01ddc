"""`fuseconv blame`, and what `fuseconv convert` says when parity fails."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from support import warm_python
from torch import Tensor, nn

from fuseconv import cli

RULES = {
    "rules": [
        {
            "name": "fast-gelu",
            "stage": "fuse",
            "doc": "An approximation.",
            "allow": "fast-gelu",
            "match": ["y = aten.gelu.default(x)"],
            "replace": ["s = aten.mul.Tensor(x, 1.702)", "t = aten.sigmoid.default(s)", "y = aten.mul.Tensor(x, t)"],
        }
    ]
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.first(x))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and rules of which one is wrong."""
    folder = tmp_path_factory.mktemp("blame")
    torch.export.save(torch.export.export(Model().eval(), (torch.randn(2, 8),)), folder / "model.pt2")
    (folder / "rules.json").write_text(json.dumps(RULES))
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def wrong(folder: Path) -> list[str | Path]:
    return [folder / "model.pt2", "--rules", folder / "rules.json", "--allow", "fast-gelu", "--target", "export"]


def test_a_verdict_as_text_and_its_script(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "blame", *wrong(folder), "-v", "-o", tmp_path)
    assert status == 1
    for text in ("the rule replaces ops by ops", "rule    fast-gelu at gelu (step 0 of the plan)", "1-rule.py"):
        assert text in out
    header = next(line.split() for line in out.splitlines() if line.startswith("node"))
    assert header == ["node", "layer", "op", "rule", "rms", "original", "fused", "ok"]
    assert f"fix: run `python {tmp_path / '1-rule.py'}`" in err
    done = warm_python.run(
        f"import runpy; runpy.run_path({str(tmp_path / '1-rule.py')!r}, run_name='__main__')", tmp_path
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "rmse against fp64" in done.stdout


def test_a_verdict_as_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "blame", *wrong(folder), "-o", tmp_path, "--json")
    record: dict[str, Any] = json.loads(out)
    assert (status, record["ok"], record["command"], record["error"]["code"]) == (1, False, "blame", "parity")
    (verdict,) = record["result"]["verdicts"]
    assert (verdict["cause"], verdict["rule"], verdict["match"], verdict["step"]) == ("rule", "fast-gelu", ["gelu"], 0)
    assert verdict["error"]["rmse_vs_fp64"] > 1e-3
    (border,) = [one for one in record["result"]["borders"] if one["node"] == "gelu"]
    assert border["original"] < 1e-6 < border["fused"]


def test_a_model_without_a_difference(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "blame", folder / "model.pt2", "--target", "export", "-o", tmp_path / "none")
    assert (status, out.strip()) == (0, "no difference: fused in PyTorch, export")
    assert "compare export" in err
    assert not (tmp_path / "none").exists()


@pytest.mark.usefixtures("active")
def test_a_conversion_that_fails_says_what_is_to_blame(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["convert", *wrong(folder), "-o", tmp_path / "out"]
    status, out, err = run(capsys, *given)
    assert status == 1
    assert "rule    fast-gelu at gelu (step 0 of the plan)" in out
    assert f"to write a script that shows the difference, run `fuseconv blame {folder / 'model.pt2'} --rules" in out
    assert "error: step 0 of the plan is wrong" in err
    status, out, err = run(capsys, *given, "--json")
    assert json.loads(out)["result"]["blame"]["verdicts"][0]["rule"] == "fast-gelu"
    status, out, err = run(capsys, *given, "--no-blame")
    assert (status, out) == (1, "")
    assert not (tmp_path / "out").exists()


class Projections(nn.Module):
    """The projections of an attention, whose weights a conversion merges, so that the bundle lacks the originals."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))


def test_merged_weights_need_the_original_which_the_error_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a folder").mkdir()
    model, bundle = tmp_path / "a folder" / "qkv.pt2", tmp_path / "a folder" / "qkv.fuseconv"
    torch.export.save(torch.export.export(Projections().eval(), (torch.randn(2, 3, 8),)), model)
    assert run(capsys, "convert", model, "--target", "export")[0] == 0
    status, _, err = run(capsys, "blame", bundle)
    assert status == 4
    assert "which the conversion merged or folded" in err
    (command,) = re.findall(r"fix: compare with the original model: (fuseconv blame .*)", err)
    words = shlex.split(command)
    assert words == ["fuseconv", "blame", str(bundle), "--against", str(model)]
    assert run(capsys, *words[1:])[0] == 0
    moved = model.rename(tmp_path / "moved.pt2")
    assert "--against qkv.pt2\n" in run(capsys, "blame", bundle)[2]
    assert run(capsys, "blame", bundle, "--against", moved)[0] == 0


ERRORS: dict[str, tuple[list[str], int, str]] = {
    "no model": (["absent.pt2"], 6, "there is no such file or folder"),
    "no such target": (["model.pt2", "--target", "tensorrt"], 2, "unknown target tensorrt"),
    "a time of less than nothing": (["model.pt2", "--time-limit", "-1"], 2, "'--time-limit'"),
    "not a bundle": (["model.pt2", "--against", "model.pt2"], 2, "--against needs a bundle"),
    "a file as the folder": (["model.pt2", "-o", "rules.json"], 6, "the output path is not a folder"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_wrong_calls(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected, said = ERRORS[case]
    monkeypatch.chdir(folder)
    status, _, err = run(capsys, "blame", *words)
    assert status == expected
    assert said in err
    assert "fix:" in err
