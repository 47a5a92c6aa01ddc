"""Filling a bundle: a target that finds out late that it cannot leaves nothing behind."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import small_bundle
import torch

from fuseconv.assembly import write_targets
from fuseconv.errors import UnsupportedError


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * 2 + 1,)


def test_what_a_skipped_target_wrote_is_removed(tmp_path: Path) -> None:
    program = small_bundle.program(Scaled(), ("x=bf16[batch:1..4,8]",))
    written, skipped = write_targets(program, tmp_path, ["onnx", "export"], lambda step: nullcontext())
    assert [one.target for one in written] == ["export"]
    assert "has no kernel" in skipped["onnx"]  # known only when ONNX Runtime reads the file
    assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_without_any_target_the_error_gives_every_reason(tmp_path: Path) -> None:
    program = small_bundle.program(Scaled(), ("x=bf16[batch:1..4,8]",))
    with pytest.raises(UnsupportedError, match=r"onnx: ONNX Runtime .* has no kernel"):
        write_targets(program, tmp_path, ["onnx"], lambda step: nullcontext())
    assert not list(tmp_path.iterdir())
