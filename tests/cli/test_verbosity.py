"""`-q` prints errors only, `-v` every row of parity; without them, a row per target, and the next commands."""

from __future__ import annotations

import io
import json
import logging
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

from fuseconv import cli
from fuseconv.commands.progress import shown


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)


pytestmark = pytest.mark.usefixtures("active")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds a model, its bundle, and inputs."""
    folder = tmp_path_factory.mktemp("a folder")
    batch = torch.export.Dim("batch", min=1, max=16)
    exported = torch.export.export(Scale(), (torch.ones(2, 3),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, folder / "scale.pt2")
    torch.save({"x": torch.ones(2, 3)}, folder / "x.pt")
    assert cli.main(["convert", str(folder / "scale.pt2"), "--target", "export"]) == 0
    return folder


def run(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main([word.format(folder) for word in words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


QUIET = {
    "convert": ["{}/scale.pt2", "--target", "export", "-o", "{}/again.fuseconv"],
    "verify": ["{}/scale.fuseconv"],
    "match": ["{}/scale.pt2", "-o", "{}/plan.json"],
    "run": ["{}/scale.fuseconv", "--inputs", "{}/x.pt", "-o", "{}/y.safetensors"],
    "doctor": ["{}/scale.fuseconv"],
    "rules": ["check", "rules/structure/cat.json"],
}


@pytest.mark.parametrize(("command", "flag"), [*((command, "-q") for command in QUIET), ("verify", "--quiet")])
def test_q_prints_nothing_if_all_is_well(
    command: str, flag: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, folder, command, *QUIET[command], flag) == (0, "", "")
    status, out, err = run(capsys, folder, command, *QUIET[command], flag, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["ok"]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["verify", "{}/absent", "-q"], 2),
        (["convert", "{}/x.pt", "-q"], 2),
        (["rules", "check", "{}/absent.json", "-q"], 2),
    ],
    ids=str,
)
def test_q_prints_the_error(words: list[str], status: int, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = run(capsys, folder, *words)
    assert (found, out) == (status, "")
    assert err.startswith("error: ")
    assert "\n  fix: " in err


@pytest.mark.usefixtures("own_server")
def test_q_silences_warnings_and_is_over_with_its_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    command = ["match", "{}/scale.pt2", "-o", "{}/plan.json"]
    assert run(capsys, folder, *command, "-q")[2] == ""
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set" in run(capsys, folder, *command)[2]
    capsys.readouterr()
    logging.getLogger("fuseconv").warning("said outside of a command")
    assert "said outside" in capsys.readouterr().err


def test_v_shows_every_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows(*words: str) -> list[str]:
        status, out, _ = run(capsys, folder, *words)
        assert status == 0
        return [line for line in out.splitlines() if line.startswith("export ")]

    (one,) = rows("verify", "{}/scale.fuseconv")
    every = rows("verify", "{}/scale.fuseconv", "-v")
    assert len(every) > 3
    assert f" {len(every)} cases " in one
    assert rows("convert", *QUIET["convert"], "-v")[1:] == every
    assert len(rows("verify", "{}/scale.fuseconv", "--all-runtimes", "-v")) > len(every)


def following(err: str) -> list[list[str]]:
    return [shlex.split(line) for line in err.partition("\nnext:\n")[2].splitlines()]


def test_convert_ends_with_what_comes_next(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, inputs = str(folder / "again.fuseconv"), str(folder / "x.pt")
    status, out, err = run(capsys, folder, "convert", *QUIET["convert"], "--inputs", inputs)
    verify, execute, load = following(err)
    assert (status, "next:" in out) == (0, False)
    assert (verify, load[:3]) == (["fuseconv", "verify", bundle], ["python", "-i", "-c"])
    assert execute == ["fuseconv", "run", bundle, "--inputs", inputs, "-o", "outputs.safetensors"]
    assert cli.main(verify[1:]) == 0
    assert cli.main([*execute[1:-1], str(folder / "y.safetensors")]) == 0
    exec(load[3], {})


def test_match_ends_with_a_conversion_that_reads_the_model_alike(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [
        "--rules",
        "rules/pointwise",
        "--input",
        "x=f32[n:1..9,3]",
        "--input-range",
        "x=0..1",
        "--dtype",
        "double",
    ]
    status, _, err = run(capsys, folder, "match", "{}/scale.pt2", "-o", "{}/plan.json", "--no-rule", "x")
    assert (status, following(err)) == (2, [])
    status, _, err = run(capsys, folder, "match", "{}/scale.pt2", "-o", "{}/plan.json", *options)
    assert status == 0
    (convert,) = following(err)
    assert convert[:5] == ["fuseconv", "convert", f"{folder}/scale.pt2", "--plan", f"{folder}/plan.json"]
    assert sorted(convert[5:]) == sorted(word.format(folder) for word in options)
    assert cli.main([*convert[1:], "--dry-run"]) == 0


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("write aoti", "write aoti ... usually takes about a minute"),
        ("decode: write aoti unfused", "write aoti unfused ... usually takes"),
        ("write export", "write export ...\r"),
        ("compare aoti", "compare aoti ...\r"),
    ],
)
def test_a_terminal_shows_what_runs_and_how_long_it_usually_takes(
    step: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with shown(step):
        pass
    assert said in terminal.getvalue().replace("\n", "\r").replace("\x1b", "\r")
    assert re.search(rf"{step} +\d\.\d s", terminal.getvalue())


@pytest.mark.parametrize("flag", ["quiet", "verbose"])
def test_neither_is_a_setting(
    flag: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.fuseconv]\n{flag} = true\n")
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capsys, folder, "match", "{}/scale.pt2")
    assert (status, f"{flag} cannot be set in a file" in err) == (2, True)
