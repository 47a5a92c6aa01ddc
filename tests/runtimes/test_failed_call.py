"""A call that fails: an index out of range is named, and no C++ backtrace is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.shared import made_once

from fuseconv.errors import ContractError, UpstreamError
from fuseconv.runtime.model import load


class Looked(torch.nn.Module):
    """A table of seven rows that its second input indexes."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(7, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * x


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def write(output: Path) -> None:
        program = small_bundle.program(Looked(), ("x=f32[n:1..64,1]", "ids=i64[n]"))
        targets = ["aoti", "export", "torchscript", "onnx"]
        small_bundle.write_bundle(program, program, output, targets, scratch=tmp_path_factory.mktemp("looked"))

    return made_once(tmp_path_factory, "looked.fuseconv", write)


@pytest.mark.parametrize("target", ["aoti", "export", "torchscript", "onnx"])
@pytest.mark.parametrize("value", [7, -8])
def test_an_index_out_of_range_names_the_input_the_value_and_the_range(
    value: int, target: str, looked: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = load(looked, target)
    ids = torch.tensor([0, 6, value, value])
    with pytest.raises(ContractError) as caught:
        model(torch.ones(4, 1), ids)
    said = f"the target {target} failed: input ids has the value {value} at [2], which is outside of its range 0..6"
    assert caught.value.what == said
    assert capfd.readouterr().err == "" or target == "onnx"  # ONNX Runtime logs a line of its own
    assert model(torch.ones(4, 1), ids.clamp(0, 6)).shape == (4, 4)


def test_a_failure_with_indices_in_range_has_no_backtrace(looked: Path) -> None:
    model = load(looked, "aoti")

    def fail(*_: torch.Tensor) -> tuple[torch.Tensor, ...]:
        raise RuntimeError("it is broken\nException raised from f at g.cpp:1 (most recent call first):\nframe #0: f")

    model._runner = fail
    with pytest.raises(UpstreamError, match="the target aoti failed: it is broken") as caught:
        model(torch.ones(1, 1), torch.tensor([0]))
    assert "frame" not in caught.value.what
    model._runner = lambda *_: (_ for _ in ()).throw(MemoryError("no memory"))  # values are not to blame for this
    with pytest.raises(UpstreamError, match="no memory"):
        model(torch.ones(1, 1), torch.tensor([9]))
