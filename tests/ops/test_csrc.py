"""The compiled part: what its sources may include, and the properties of its libraries."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from support import ROOT
from support.libraries import patched, with_another_schema

from fuseconv import ops
from fuseconv.ops import library

SOURCES = sorted((ROOT / "csrc").rglob("*.*"))
LIBRARIES = library.library_paths("cpu")
if (library.FOLDER / "libfuseconv_cuda.so").is_file():
    LIBRARIES = library.library_paths("cuda")


def run(*command: str | Path, **kwargs: Any) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, **kwargs).stdout


def tool(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    return name


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_frameworks_are_included_by_bindings_only(path: Path) -> None:
    included = re.findall(r'#include\s+[<"]([^>"]+)[>"]', path.read_text())
    frameworks = [name for name in included if re.match(r"torch/|ATen/|c10/|onnxruntime", name)]
    assert not frameworks or path.parent.name in ("bind", "runtime"), frameworks


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_begin_with_what_they_are(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    if path.suffix in (".h", ".cuh"):
        assert first.startswith("// "), "a header begins with its formula or its one idea"


def test_the_lists_of_ops_agree() -> None:
    compiled = {schema.name.removeprefix("fuseconv::") for schema in torch._C._jit_get_all_schemas()}
    compiled = {name for name in compiled if "::" not in name}
    names = [op.name for op in ops.OPS]
    assert names == sorted(names)
    assert set(names) == compiled
    assert {path.stem for path in (ROOT / "csrc" / "ops").glob("*.h")} == set(names)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_needs_torch_and_has_no_search_path(path: Path) -> None:
    dynamic = run(tool("readelf"), "-d", path)
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", dynamic))
    torch_libraries = {"libtorch_cpu.so", "libc10.so"} | ({"libtorch_cuda.so"} if "cuda" in path.name else set())
    assert torch_libraries <= needed
    assert not any("libcuda" in name or "libnv" in name for name in needed)  # the CUDA runtime is inside
    assert "RPATH" not in dynamic
    assert "RUNPATH" not in dynamic


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_only_the_stable_interface_of_torch_is_used(path: Path) -> None:
    undefined = run(tool("nm"), "-D", "--undefined-only", path)
    names = [line.split()[-1].split("@")[0] for line in undefined.splitlines()]
    foreign = [name for name in names if re.search(r"N2at|N3c10|N5torch|_ZN[0-9]*(at|c10|torch)", name)]
    assert not foreign
    assert any(name.startswith("aoti_torch_") for name in names)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_exports_nothing_that_could_clash(path: Path) -> None:
    defined = run(tool("nm"), "-DC", "--defined-only", path)
    names = [line.split(maxsplit=2)[2] for line in defined.splitlines()]
    own = [name for name in names if "std::" not in name and name not in ("__bss_start", "_edata", "_end")]
    device = path.stem.removeprefix("libfuseconv_")
    tuning = ["fuseconv::tuning::bundle_files_1"] if device == "cuda" else []
    lists = [f"fuseconv::torch_binding::{name}_registrations" for name in dict.fromkeys(("cpu", device))]
    assert sorted(own) == [*lists, *tuning, "fuseconv_conflict", f"fuseconv_{device}_c_shim"]


def test_baseline_code_has_no_newer_instructions() -> None:
    """Outside the functions of the newer sets, no instruction has a VEX or EVEX form, whoever defined the function."""
    listing = run(tool("objdump"), "-dC", "--no-show-raw-insn", library.library_paths("cpu")[0])
    if "elf64-x86-64" not in listing:
        pytest.skip("only x86-64 has several instruction sets here")
    newer = re.compile(r"^\s+[0-9a-f]+:\s+v[a-z]+[a-z0-9]*\s.*%[xyz]mm|^\s+[0-9a-f]+:.*%[yz]mm")
    function = ""
    offenders: set[str] = set()
    vectorised: set[str] = set()
    for line in listing.splitlines():
        if match := re.match(r"^[0-9a-f]+ <(.+)>:$", line):
            function = match[1]
        elif newer.match(line):
            (vectorised if re.search(r"x86_64_v[34]", function) else offenders).add(function)
    assert not offenders
    assert vectorised


SCRIPT = "import sys, torch; [torch.ops.load_library(path) for path in sys.argv[1:]]; print(torch.ops.fuseconv.add_relu"
SCRIPT += "(torch.tensor([-1.0]), torch.tensor([3.0])).item())"


def test_copies_of_the_library_share_a_process(tmp_path: Path) -> None:
    copies = [shutil.copy(library.library_paths("cpu")[0], tmp_path / f"copy{index}.so") for index in range(3)]
    assert run(sys.executable, "-c", SCRIPT, *copies).split() == ["2.0"]


def test_a_later_version_adds_its_new_ops(tmp_path: Path) -> None:
    later = patched(tmp_path / "later.so", b"mul_add", b"sum_add")
    check = SCRIPT + "; torch.ops.fuseconv.sum_add; torch.ops.fuseconv.mul_add"
    assert run(sys.executable, "-c", check, library.library_paths("cpu")[0], later).split() == ["2.0"]


def test_a_library_with_another_schema_registers_nothing(tmp_path: Path) -> None:
    """Also with a stock loader, which cannot know of the conflict: the process goes on with the first library."""
    original, other = library.library_paths("cpu")[0], with_another_schema(tmp_path / "other.so")
    script = SCRIPT + "; assert hasattr(torch.ops.fuseconv, 'mul_add') and not hasattr(torch.ops.fuseconv, 'sum_add')"
    done = subprocess.run([sys.executable, "-c", script, original, other], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["2.0"]), done.stderr
    assert done.stderr == (
        "fuseconv: the op add_relu has two schemas: add_relu(Tensor a, Tensor b) -> Tensor in "
        f"{original}, which this process loaded first, and add_relu(Tensor a, Tensor z) -> Tensor in {other}. "
        "The second library registers no ops: load it in another process\n"
    )


def test_the_package_says_that_another_library_was_loaded_first(tmp_path: Path) -> None:
    other = with_another_schema(tmp_path / "other.so")
    script = "import sys, torch; torch.ops.load_library(sys.argv[1]); import fuseconv.ops"
    done = subprocess.run([sys.executable, "-c", script, other], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "UnsupportedError: the op library registers no ops: the op add_relu has two schemas" in done.stderr


def test_cuda_library_registers_beside_the_cpu_one(tmp_path: Path) -> None:
    """Without CUDA the CUDA half still loads where its libraries are; here it must at least be complete."""
    if len(LIBRARIES) == 1:
        pytest.skip("the CUDA library is not built")
    undefined = run(tool("nm"), "-DC", "--undefined-only", LIBRARIES[1])
    assert not [line for line in undefined.splitlines() if "fuseconv::" in line]
