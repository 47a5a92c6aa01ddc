"""Writing a target: a failure, at any point, leaves no files and reports what failed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import small_bundle

from fuseconv import targets
from fuseconv.errors import UnsupportedError, UpstreamError
from fuseconv.pipeline.assembly import remove_target, write_target


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x * 2 + 1,)


def test_what_a_target_wrote_before_it_found_out_is_removed(tmp_path: Path) -> None:
    program = small_bundle.program(Scaled(), ("x=bf16[batch:1..4,8]",))
    written = write_target("export", program, tmp_path)
    with pytest.raises(UnsupportedError, match="has no kernel"):  # known only when ONNX Runtime reads the file
        write_target("onnx", program, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["export"]
    remove_target(tmp_path, written)
    assert not list(tmp_path.iterdir())


RAISED = {
    "a bug of the exporter": (KeyError("s77"), r"exporter for the target export failed: KeyError: 's77'"),
    "an op": (
        RuntimeError("while translating aten.roll.default\nTraceback"),
        r"failed: RuntimeError: while translating aten\.roll\.default",
    ),
    "no memory": (MemoryError(), r"failed: MemoryError"),
    "an assertion": (AssertionError(), r"failed: AssertionError"),
}


@pytest.mark.parametrize("name", RAISED)
def test_what_an_exporter_raises_is_an_error_of_the_target(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised, words = RAISED[name]

    def write(program: object, folder: Path, context: object) -> Path:
        (folder / "export").mkdir()
        (folder / "export" / "half").write_text("x")
        raise raised

    monkeypatch.setattr(targets.exported, "write", write)
    program = small_bundle.program(Scaled(), ("x=f32[batch:1..4,8]",))
    with pytest.raises(UpstreamError, match=words):
        write_target("export", program, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_op_in_a_cause_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(program: object, folder: Path, context: object) -> Path:
        try:
            raise ValueError("no such dim")
        except ValueError as error:
            raise RuntimeError("decomposing torch.ops.aten.unfold.default") from error

    monkeypatch.setattr(targets.exported, "write", write)
    program = small_bundle.program(Scaled(), ("x=f32[batch:1..4,8]",))
    with pytest.raises(UpstreamError, match=r"failed at torch\.ops\.aten\.unfold\.default: ValueError: no such dim"):
        write_target("export", program, tmp_path)
