"""FUSECONV_REQUIRE_GPU=1: on a machine with a GPU, no GPU test is skipped silently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

TESTS = """
import pytest
from support import ROOT

@pytest.mark.gpu
def test_on_a_gpu():
    pass

@pytest.mark.gpu
def test_without_its_library():
    pytest.skip("the library is not built")

def test_elsewhere():
    pytest.skip("for a reason of its own")
"""

WITH_A_GPU = "import torch\ntorch.cuda.is_available = lambda: True\n"


def outcome(folder: Path, required: str, conftest: str = "") -> tuple[int, str]:
    (folder / "test_some.py").write_text(TESTS)
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    environment = {**os.environ, "FUSECONV_REQUIRE_GPU": required, "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    words = ["-q", "-p", "support.gpu_marker", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_without_a_gpu_its_tests_are_skipped(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, "0")
    assert status == 0, said
    assert "3 skipped" in said


def test_without_a_gpu_that_is_required_nothing_is_run(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, "1")
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "FUSECONV_REQUIRE_GPU=1, and torch" in said
    assert "Look at nvidia-smi" in said


def test_a_test_of_the_marker_that_skips_itself_fails(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, "1", WITH_A_GPU)
    assert status == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "this test was not run. Skipped: the library is not built" in said


def test_with_a_gpu_that_is_not_required_it_may_skip_itself(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, "0", WITH_A_GPU)
    assert status == 0, said
    assert "1 passed, 2 skipped" in said


def test_a_value_that_means_nothing_is_refused(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, "yes")
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "FUSECONV_REQUIRE_GPU is 'yes': set it to 1" in said
