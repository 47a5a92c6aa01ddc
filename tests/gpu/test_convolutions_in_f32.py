"""Convolutions of f32 in a process that forbids TF32: a bundle computes them in f32 wherever it runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

from fuseconv.pipeline.convert import convert
from fuseconv.runtime.model import load
from fuseconv.sources import Options

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


MODELS = {
    "1-D": (
        nn.Sequential(
            nn.Conv1d(16, 32, 3, padding=130, dilation=130), nn.ReLU(), nn.Conv1d(32, 24, 5, 2, 2), nn.GELU()
        ),
        (16, 400),
    ),
    "2-D": (
        nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 36, 3, 2), nn.ELU()),
        (8, 17, 19),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_bundle_keeps_that_tf32_is_forbidden(without_tf32: None, name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, sizes = MODELS[name]
    model.eval()
    program, output = tmp_path / "model.pt2", tmp_path / "model.fuseconv"
    batch = Dim("batch", min=1, max=8)
    torch.export.save(torch.export.export(model, (torch.randn(3, *sizes),), dynamic_shapes=({0: batch},)), program)
    done = convert(program, target=["aoti", "export"], options=Options(device="cuda"), tune="none", output=output)
    assert not done.left_out
    assert not done.plan.rejected
    torch.backends.cudnn.allow_tf32 = True  # where the bundle runs
    for target in ("aoti", "export"):
        loaded = load(output, target)
        for rows in (1, 5):
            x = torch.randn(rows, *sizes)
            with torch.no_grad():
                got, fp64 = loaded(x.cuda()).cpu().double(), model.double()(x.double())
                model.float()
            assert (got - fp64).abs().max() < 3e-6  # TF32 would give 1e-3
