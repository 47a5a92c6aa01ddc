"""What a new user meets: inputs that do not exist, a model whose outputs are NaN, a target that is left out."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseconv import cli
from fuseconv.bundle.manifest import read_manifest, seal
from fuseconv.contract.inputs import from_file
from fuseconv.errors import FileError
from fuseconv.weights.tensor_file import write


class Undefined(torch.nn.Module):
    """One output is NaN for every input, the other never."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.log(-1 - x.square()), x.relu()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a model and its bundle `undefined.fuseconv` with the targets export and torchscript."""
    folder = tmp_path_factory.mktemp("first")
    torch.export.save(torch.export.export(Undefined(), (torch.ones(2, 3),)), folder / "undefined.pt2")
    assert cli.main(["convert", str(folder / "undefined.pt2"), "--target", "export,torchscript", "-q"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([str(word) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_outputs_without_a_finite_number_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, said = folder / "undefined.fuseconv", "output output_0 is NaN or infinite everywhere"
    status, out, _ = run(capsys, "convert", folder / "undefined.pt2", "--target", "export", "-o", folder / "b.fuseconv")
    assert (status, out.count(said), "output_1 is" in out) == (0, 1, False)
    status, out, _ = run(capsys, "verify", bundle)
    assert (status, out.count(said)) == (0, 1)
    assert json.loads(run(capsys, "verify", bundle, "--json")[1])["result"]["uncompared"] == ["output_0"]


def test_verify_runs_the_targets_that_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = folder / "undefined.fuseconv"
    status, out, _ = run(capsys, "verify", bundle, "--target", "export", "--json")
    assert (status, list(json.loads(out)["result"]["targets"])) == (0, ["export"])
    status, out, _ = run(capsys, "verify", bundle, "--target", "export", "--all-runtimes", "--json")
    assert {cell["row"] for cell in json.loads(out)["result"]["cells"]} == {"export"}
    status, _, err = run(capsys, "verify", bundle, "--target", "aoti")
    assert (status, "the bundle has no target aoti\n" in err) == (2, True)
    assert "use one of export, torchscript" in err


def test_a_target_that_was_left_out_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Path(shutil.copytree(folder / "undefined.fuseconv", tmp_path / "left_out.fuseconv"))
    manifest = read_manifest(bundle)
    left = {"target": "onnx", "cause": "unsupported", "reason": "ONNX Runtime has no kernel for Log"}
    seal(bundle, type(manifest).model_validate({**manifest.model_dump(), "left_out": [left]}))
    for command in ("verify", "blame"):
        status, _, err = run(capsys, command, bundle, "--target", "onnx")
        assert status == 2
        assert "the conversion left it out: ONNX Runtime has no kernel for Log" in err


@pytest.mark.pages
@pytest.mark.parametrize("active", [True, False])
def test_the_commands_that_a_conversion_prints_run_as_printed(active: bool, folder: Path, tmp_path: Path) -> None:
    """In a shell in which the environment is active, and in one that finds no `fuseconv`."""
    shutil.copy(folder / "undefined.pt2", tmp_path / "a model.pt2")
    own = str(Path(sys.executable).parent)
    settings: dict[str, Any] = {
        "cwd": tmp_path,
        "env": {**os.environ, "PATH": f"{own}:/usr/bin:/bin" if active else "/usr/bin:/bin"},
        "stdin": subprocess.DEVNULL,  # ends `python -i`
        "check": True,
        "text": True,
    }
    words = [sys.executable, "-m", "fuseconv", "convert", "a model.pt2", "--target", "export"]
    said = subprocess.run(words, stderr=subprocess.PIPE, **settings).stderr
    commands = [line.strip() for line in said.partition("\nnext:\n")[2].splitlines()]
    assert len(commands) == 3
    assert all(own in command for command in commands) != active
    for command in commands:
        subprocess.run(command, shell=True, **settings)
    assert (tmp_path / "outputs.safetensors").is_file()


def test_without_inputs_a_bundle_is_run_on_those_of_its_first_case(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, output = folder / "undefined.fuseconv", tmp_path / "y.safetensors"
    status, out, _ = run(capsys, "run", bundle, "-o", output)
    assert status == 0
    assert "the case given of reference.safetensors" in out
    assert from_file(output)["output_1"].tolist() == torch.ones(2, 3).tolist()


def test_inputs_that_do_not_exist_are_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(
        capsys, "run", folder / "undefined.fuseconv", "--inputs", folder / "absent.pt", "-o", folder / "y.npz"
    )
    assert status == 6
    assert "save the inputs to it" in err
    assert "x=f32[2,3]" in err


def test_a_missing_option_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "run", folder / "undefined.fuseconv", "--inputs", folder / "absent.pt")
    assert status == 2
    assert "error: the option --output is missing\n" in err
    assert "fix: add --output FILE: Output file: .safetensors or .npz." in err


def test_inspect_prints_no_empty_line(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # so that no value is wrapped
    out = run(capsys, "inspect", folder / "undefined.fuseconv")[1]
    assert not [line for line in out.splitlines() if len(line.split()) < 2]


RULES: dict[str, tuple[str, str, str]] = {
    "two commas": ('{"rules": [1,, 2]}', "a ',' has no value after it", "remove the comma"),
    "a comma at the end": ('{"rules": [],}', "a ',' has no value after it", "remove the comma"),
    "a misspelt field beside a missing one": ('{"rules": [{"nam": "x"}]}', "unknown field nam", "did you mean name?"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_mistake_in_a_rule_file_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, what, fix = RULES[name]
    (tmp_path / "rules.json").write_text(text)
    status, _, err = run(capsys, "rules", "check", tmp_path / "rules.json")
    assert status == 2
    assert f"error: {what}\n" in err
    assert f"fix: {fix}\n" in err
    assert f"{tmp_path / 'rules.json'}:1:" in err


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free disk space, or choose an output on another disk"),
        (errno.EROFS, "choose an output in a folder that you may write to"),
        (errno.EIO, "check the path, its permissions and the free disk space"),
    ],
)
def test_the_fix_of_an_output_that_cannot_be_written_depends_on_why(number: int, fix: str) -> None:
    error = FileError.unwritable("the report cannot be written", OSError(number, os.strerror(number)), "a/b")
    assert (error.what, error.where, error.fix) == (f"the report cannot be written: {os.strerror(number)}", "a/b", fix)


def test_a_full_disk_has_a_fix() -> None:
    with pytest.raises(FileError, match="No space left") as caught:
        write(Path("/dev/full"), {"x": torch.ones(1 << 16)})
    assert caught.value.fix.startswith("free disk space")
