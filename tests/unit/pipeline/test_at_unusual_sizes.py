"""A conversion checks every artifact at sizes where an axis has one element or none, and the bundle contains them."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.options import Options
from fuseconv.parity.verification import verify
from fuseconv.pipeline.convert import convert


class Rest(torch.nn.Module):
    """Computes with what follows the first position, which is nothing or one position at the smallest sizes."""

    def forward(self, x: Tensor) -> Tensor:
        rest = x[:, 1:]
        return torch.cat([x[:, :1], torch.nn.functional.linear(rest, torch.ones(8, 8)).cumsum(1) * rest.relu()], 1)


def test_every_artifact_is_checked_at_unusual_sizes(tmp_path: Path) -> None:
    path, bundle = tmp_path / "rest.pt", tmp_path / "rest.fuseconv"
    torch.save(Rest(), path)
    options = Options(inputs=parse_inputs(["x=f32[batch:1..4,n:1..20,8]"]), trust=frozenset({"pickle"}))
    convert(path, target=["torchscript", "export"], output=bundle, options=options)
    report = verify(bundle)
    assert report.ok
    for target in ("torchscript", "export"):
        assert {"batch = 3, n = 2", "batch = 3, n = 1"} <= {row.case for row in report.rows if row.target == target}
