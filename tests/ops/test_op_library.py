"""The op library: its choice of instruction set, and the errors if it is missing or damaged."""

import os
import platform
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from support import ROOT

from fuseconv import ops
from fuseconv.errors import FileError
from fuseconv.ops import library

ISAS = ["baseline", "x86-64-v3", "x86-64-v4"]
ONE_CALL = "import torch; from fuseconv import ops; ops.add_relu(torch.ones(1), torch.ones(1))"


def run_with_isa(isa: str, *command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, "FUSECONV_ISA": isa}, capture_output=True, text=True
    )


@pytest.mark.compiles
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one instruction set here")
@pytest.mark.skipif("FUSECONV_ISA" in os.environ, reason="this is the inner run")
@pytest.mark.parametrize(("isa", "better"), list(pairwise(ISAS)))
def test_instruction_sets_that_this_processor_would_not_take(isa: str, better: str) -> None:
    if run_with_isa(better, "-c", ONE_CALL).returncode != 0:
        pytest.skip(f"this processor takes {isa} or less by itself")
    chosen = "cpu and (test_values or test_special or test_conversions or test_f16)"
    inner = run_with_isa(
        isa,
        "-m",
        "pytest",
        str(ROOT / "tests" / "ops" / "test_ops.py"),
        "-k",
        chosen,
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
    )
    assert inner.returncode == 0, inner.stdout[-3000:]


def test_unknown_instruction_set_is_refused() -> None:
    result = run_with_isa("avx9000", "-c", ONE_CALL)
    assert result.returncode != 0
    assert "FUSECONV_ISA=avx9000 is not an instruction set of this processor; use one of baseline" in result.stderr


def test_missing_library_names_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    with pytest.raises(FileError, match=r"libfuseconv_cpu\.so is not built") as caught:
        ops.library_paths("cpu")
    assert "make build" in caught.value.fix


def test_damaged_library_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libfuseconv_cpu.so").write_bytes(b"not a library")
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    with pytest.raises(FileError, match="cannot be loaded"):
        library.load()


def test_library_paths() -> None:
    assert [path.name for path in ops.library_paths("cpu")] == ["libfuseconv_cpu.so"]
