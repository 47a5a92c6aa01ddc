"""A captured program on another device. `meta` stands for a GPU: it holds no values, and mixes with no other device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.capture.placement import place
from fuseconv.contract.input_text import parse_inputs
from fuseconv.sources import Options, read


class Positions(nn.Module):
    """Adds numbers that it makes on the device of its input, as transformers make positions and masks."""

    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(4, device=x.device) + torch.zeros(4, device=x.device)
        scale = torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
        return self.linear(x) * positions.to(x.device) * scale + self.offset


@pytest.mark.parametrize("source", ["archive", "module"])
def test_the_original_and_the_program_make_their_tensors_there(source: str, tmp_path: Path) -> None:
    path = tmp_path / ("model.pt2" if source == "archive" else "model.pt")
    if source == "archive":
        torch.export.save(torch.export.export(Positions().eval(), (torch.randn(2, 4),)), path)
        options = Options()
    else:
        torch.save(Positions().eval(), path)
        options = Options(inputs=parse_inputs(["x=f32[2,4]"]), trust=frozenset({"pickle"}))
    program = place(capture(read(path, options=options)), "meta")
    assert program.original is not None
    (example,) = program.examples
    for run in (program.original, program.exported.module()):
        results = run(example)
        result = results[0] if isinstance(results, tuple) else results
        assert result.device.type == "meta"
