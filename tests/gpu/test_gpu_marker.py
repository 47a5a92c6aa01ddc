"""FUSECONV_REQUIRE_GPU=1: on a machine with a GPU, no GPU test is skipped silently."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from support import ROOT

Outcomes = dict[str, tuple[int, str]]

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


FORKS = """
import os, sys
import pytest
import torch  # once for all

for folder, required in zip(sys.argv[1::2], sys.argv[2::2]):
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        os.environ["FUSECONV_REQUIRE_GPU"] = required
        with open("said.txt", "w") as said:
            os.dup2(said.fileno(), 1)
            os.dup2(said.fileno(), 2)
        status = pytest.main(["-q", "-p", "support.gpu_marker", "-p", "no:cacheprovider", folder])
        sys.stdout.flush()
        os._exit(status)
    with open(os.path.join(folder, "status.txt"), "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
"""

RUNS = {
    "none": ("0", ""),
    "none, required": ("1", ""),
    "one, required": ("1", WITH_A_GPU),
    "one": ("0", WITH_A_GPU),
    "another value": ("yes", ""),
}
"""What FUSECONV_REQUIRE_GPU is, and the conftest.py, by what is tried."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """The exit status and the output of pytest in each of the runs."""
    folders = {name: tmp_path_factory.mktemp("run") for name in RUNS}
    for name, folder in folders.items():
        (folder / "test_some.py").write_text(TESTS)
        (folder / "conftest.py").write_text(RUNS[name][1])
        (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), *sys.path])
    words = [word for name, folder in folders.items() for word in (str(folder), RUNS[name][0])]
    subprocess.run([sys.executable, "-c", FORKS, *words], env=environment, check=True)
    return {
        name: (int((folder / "status.txt").read_text()), (folder / "said.txt").read_text())
        for name, folder in folders.items()
    }


def test_without_a_gpu_its_tests_are_skipped(outcomes: Outcomes) -> None:
    status, said = outcomes["none"]
    assert status == 0, said
    assert "3 skipped" in said


def test_without_a_gpu_that_is_required_nothing_is_run(outcomes: Outcomes) -> None:
    status, said = outcomes["none, required"]
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "FUSECONV_REQUIRE_GPU=1, and torch" in said
    assert "Look at nvidia-smi" in said


def test_a_test_of_the_marker_that_skips_itself_fails(outcomes: Outcomes) -> None:
    status, said = outcomes["one, required"]
    assert status == pytest.ExitCode.TESTS_FAILED, said
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "this test was not run. Skipped: the library is not built" in said


def test_with_a_gpu_that_is_not_required_it_may_skip_itself(outcomes: Outcomes) -> None:
    status, said = outcomes["one"]
    assert status == 0, said
    assert "1 passed, 2 skipped" in said


def test_a_value_that_means_nothing_is_refused(outcomes: Outcomes) -> None:
    status, said = outcomes["another value"]
    assert status == pytest.ExitCode.USAGE_ERROR, said
    assert "FUSECONV_REQUIRE_GPU is 'yes': set it to 1" in said
