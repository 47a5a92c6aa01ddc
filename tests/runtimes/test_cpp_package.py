"""find_package(fuseconv): which sources it compiles. Only configured here: the tests compile the runtime once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch
from support import ROOT

from fuseconv.runtime import cpp

PROJECT = """
cmake_minimum_required(VERSION 3.24)
project(one LANGUAGES CXX)
find_package(fuseconv REQUIRED COMPONENTS onnx)
"""


def compiled(source: Path, folder: Path) -> set[str]:
    """Returns the sources of the runtime that a project compiles where it is given no library."""
    (folder / "onnxruntime_c_api.h").touch()
    settings = {
        "CMAKE_PREFIX_PATH": torch.utils.cmake_prefix_path,
        "fuseconv_DIR": ROOT / "csrc" / "runtime",
        "FUSECONV_JSON": cpp.json_headers() or "/usr/include",
        "FUSECONV_ONNXRUNTIME": folder,
    }
    defined = [f"-D{name}={value}" for name, value in settings.items()]
    command = ["cmake", "-S", f"{source}", "-B", f"{folder}/build", "-G", "Ninja", *defined]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    files = [folder / "build" / "build.ninja", *(folder / "build").rglob("unity_*.cxx")]
    said = "".join(file.read_text() for file in files)
    return {path.stem for path in (ROOT / "csrc" / "runtime").glob("*.cpp") if f"/{path.name}" in said}


SHARED = {"bundle", "contract", "files", "model", "packages", "run", "safetensors", "sha256", "state"}


def test_the_sample_compiles_both_runtimes(tmp_path: Path) -> None:
    graphs = "cuda_graphs" if torch.version.cuda else "cuda_graphs_absent"
    runners = {"torch_runner", "weights", "onnx_runner", graphs}
    assert compiled(ROOT / "samples" / "04_cpp", tmp_path) == {*SHARED, *runners}


def test_a_project_may_need_onnx_alone(tmp_path: Path) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    assert compiled(tmp_path, tmp_path) == {*SHARED, "torch_absent", "onnx_runner"}
