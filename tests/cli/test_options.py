"""The options of commands: their words, and that a wrong one is reported before torch is imported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseconv import cli


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
    ids=str,
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
