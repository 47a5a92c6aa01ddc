"""The options of commands: their words, and that a wrong one is reported before torch is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import cold_cli

from fuseconv import cli
from fuseconv.commands.outputs import write_outputs
from fuseconv.contract.inputs import from_file
from fuseconv.errors import UsageError


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds scale.pt2 and its bundle."""
    folder = tmp_path_factory.mktemp("options")
    torch.export.save(torch.export.export(Scale(), (torch.ones(2, 3),)), folder / "scale.pt2")
    assert cli.main(["convert", str(folder / "scale.pt2"), "--target", "export,torchscript"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    status = cli.main([*words, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        (["export,torchscript"], {"export", "torchscript"}),
        (["export, torchscript,"], {"export", "torchscript"}),
        (["export,export", "export"], {"export"}),
    ],
    ids=["two", "a comma at the end", "one twice"],
)
def test_targets_are_separated_by_commas(
    words: list[str], targets: set[str], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part for word in words for part in ("--target", word)]
    output = str(tmp_path / "scale.fuseconv")
    status, found = run(capsys, "convert", str(folder / "scale.pt2"), *given, "-o", output, "--dtype", "float64")
    assert (status, set(found["result"]["targets"])) == (0, targets)
    assert run(capsys, "inspect", output)[1]["result"]["dtype"] == "f32"  # it has no weights
    assert run(capsys, "inspect", output)[1]["result"]["source"]["dtype"] == "f64"


AT_ONCE: dict[str, tuple[list[str], int]] = {
    "no model": (["convert", "{}/absent.pt"], 6),
    "no such option": (["convert", "{}/scale.pt2", "--targets", "export"], 2),
    "no such target": (["convert", "{}/scale.pt2", "--target", "export,tflite"], 2),
    "no target": (["convert", "{}/scale.pt2", "--target", ","], 2),
    "an empty target": (["verify", "{}/scale.fuseconv", "--target", ""], 2),
    "too many dims": (["convert", "{}/scale.pt2", "--input", f"x=f32[{'1,' * 64}8]"], 2),
    "no such dtype": (["convert", "{}/scale.pt2", "--dtype", "f17"], 2),
    "no such device": (["convert", "{}/scale.pt2", "--device", "tpu"], 2),
    "no such trust": (["convert", "{}/scale.pt2", "--trust", "all"], 2),
    "no inputs": (["convert", "{}/scale.pt2", "--inputs", "{}/absent.npz"], 6),
    "no such input": (["convert", "{}/scale.pt2", "--input", "x=f17[2]"], 2),
    "no such target to be contained": (["convert", "{}/scale.pt2", "--self-contained", "export,x"], 2),
    "no such peer": (["convert", "{}/scale.pt2", "--not-slower-than", "tensorrt"], 2),
    "no such range": (["convert", "{}/scale.pt2", "--input-range", "x=1"], 2),
    "no plan": (["convert", "{}/scale.pt2", "--plan", "{}/absent.json"], 6),
    "no rules": (["convert", "{}/scale.pt2", "--rules", "{}/absent.json"], 2),
    "no such rule": (["convert", "{}/scale.pt2", "--no-rule", "linear-actt"], 2),
    "nothing allowed": (["convert", "{}/scale.pt2", "--allow", "everything"], 2),
    "nothing allowed to blame": (["blame", "{}/scale.pt2", "--allow", "everything"], 2),
    "no factory": (["convert", "{}/scale.pt2", "--model", "factory.py"], 2),
    "no file of the factory": (["convert", "{}/scale.pt2", "--model", "{}/absent.py:build"], 2),
    "no buckets": (["convert", "{}/scale.pt2", "--bucket", "x"], 2),
    "output taken": (["convert", "{}/scale.pt2", "-o", "{}/scale.pt2"], 2),
    "output taken, dry run": (["convert", "{}/scale.pt2", "-o", "{}/scale.pt2", "--dry-run"], 2),
    "a setting": (["match", "{}/scale.pt2", "--dtype", "f17"], 2),
    "no rules to match": (["match", "{}/scale.pt2", "--rules", "{}/absent.json"], 2),
    "an option of models": (["explain", "{}/scale.fuseconv", "--dtype", "f16"], 2),
    "no such rule to explain": (["explain", "{}/scale.pt2", "--no-rule", "linear-actt"], 2),
    "no bundle": (["verify", "{}/absent"], 2),
    "not a bundle": (["verify", "{}"], 3),
    "no original": (["verify", "{}/scale.fuseconv", "--against", "{}/absent.pt2"], 6),
    "an option of the original": (["verify", "{}/scale.fuseconv", "--device", "cuda"], 2),
    "no inputs to run": (["run", "{}/scale.fuseconv", "--inputs", "{}/absent.npz", "-o", "{}/y.npz"], 6),
    "no output of run": (["run", "{}/scale.fuseconv", "--inputs", "{}/scale.pt2", "-o", "{}/absent/y"], 6),
    "no target to run": (["run", "{}/scale.fuseconv", "--target", "x", "--inputs", "x", "-o", "y"], 2),
    "no signer": (["run", "{}/scale.fuseconv", "--signer", "{}/absent.pub", "-o", "{}/y.npz"], 6),
    "not signed": (["run", "{}/scale.fuseconv", "--signer", "{}/scale.pt2", "-o", "{}/y.npz"], 2),
    "no target to time": (["bench", "{}/scale.fuseconv", "--target", "export,x"], 2),
    "a target that is not there to time": (["bench", "{}/scale.fuseconv", "--target", "aoti"], 2),
    "a target that is not there to verify": (["verify", "{}/scale.fuseconv", "--target", "aoti"], 2),
    "a target that is not there to run": (["run", "{}/scale.fuseconv", "--target", "aoti", "-o", "{}/y.npz"], 2),
    "a target that is not there to blame": (["blame", "{}/scale.fuseconv", "--target", "aoti"], 2),
    "no size to time": (["bench", "{}/scale.fuseconv", "--shape", "batch"], 2),
    "no original to time": (["bench", "{}/scale.fuseconv", "--against", "{}/absent.pt2"], 6),
    "nothing to serve": (["serve", "{}", "--local"], 3),
    "no target to serve": (["serve", "{}/scale.fuseconv", "--local", "--target", "x"], 2),
    "no models": (["convert-many", "{}/absent.yaml", "-o", "{}/many"], 6),
    "not a list of models": (["convert-many", "{}/scale.pt2", "-o", "{}/many"], 2),
    "no target to tune": (["tune", "{}/scale.fuseconv", "--target", "x"], 2),
    "no bundle to look at": (["doctor", "{}/absent"], 2),
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_wrong_option_is_reported_before_torch_is_imported(name: str, folder: Path) -> None:
    words, status = AT_ONCE[name]
    done = cold_cli.run([word.format(folder) for word in words])
    assert (done.status, done.torch, done.stdout) == (status, False, ""), done.stderr
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--bucket", "absent=1,2"), ("--self-contained", "absent"), ("--input-range", "absent=0..1")],
)
def test_a_dry_run_checks_every_option(
    option: str, value: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--dry-run", option, value, "-o", str(tmp_path / "none.fuseconv")]
    assert cli.main(["convert", str(folder / "scale.pt2"), *words]) == UsageError.exit_status
    assert "absent" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["tune", "{}", "--seconds"],
        ["blame", "{}", "--time-limit"],
        ["serve", "{}", "--timeout"],
        ["serve", "{}", "--delay"],
        ["serve", "{}", "--gpus"],
        ["convert-many", "{}", "-o", "out", "--timeout"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_a_number_is_finite(words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in ("nan", "inf"):
        assert cli.main([*(word.format(folder / "scale.fuseconv") for word in words), number]) == UsageError.exit_status
        assert words[-1] in capsys.readouterr().err


def test_outputs_are_written_as_npz(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": torch.tensor([[1.0, -2, 3], [4, 5, 6]])}, tmp_path / "x.pt")
    command = ["run", str(folder / "scale.fuseconv"), "--inputs", str(tmp_path / "x.pt"), "-o"]
    for name in ("y.npz", "y.safetensors", "y"):
        assert run(capsys, *command, str(tmp_path / name))[0] == 0
        (found,) = from_file(tmp_path / name).values()
        assert found.tolist() == [[2, 0, 6], [8, 10, 12]]
    with np.load(tmp_path / "y.npz") as arrays:
        assert len(arrays.files) == 1
    status, found = run(capsys, *command, str(tmp_path / "y.csv"))
    assert (status, found["error"]["hint"]) == (2, "use a path that ends with .safetensors or .npz")
    assert not (tmp_path / "y.csv").exists()


def test_npz_has_no_bf16_and_any_name(tmp_path: Path) -> None:
    write_outputs({"file": torch.ones(2), "allow_pickle": torch.ones(1)}, tmp_path / "y.npz")
    assert set(from_file(tmp_path / "y.npz")) == {"file", "allow_pickle"}
    with pytest.raises(UsageError, match=r"the output y cannot be written as \.npz: NumPy has no dtype bf16"):
        write_outputs({"y": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "y.npz")
