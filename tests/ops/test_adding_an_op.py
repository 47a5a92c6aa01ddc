"""docs/adding-an-op.md: its files define an op, in a copy of the repository that is built."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

PAGE = (ROOT / "docs" / "adding-an-op.md").read_text()
BLOCKS = dict(re.findall(r'```\w+ title="(.+?)"\n(.+?)```', PAGE, flags=re.DOTALL))

COMPILER = """#!{python} -IS
import os, shutil, sys
arguments = sys.argv[1:]
name = arguments[arguments.index("-o") + 1]
for built in {built!r}:
    if "/fuseconv_cpu.dir/" not in name and os.path.exists(os.path.join(built, name)):
        shutil.copy(os.path.join(built, name), name)
        sys.exit()
os.execvp(arguments[0], arguments)
"""
"""Takes what the build has compiled already, but the objects of fuseconv_cpu: they contain the list of ops."""

CALL = """
import sys
import torch

# An editable install finds this repository before PYTHONPATH is asked.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
import fuseconv
from fuseconv.ops import OPS

(op,) = (op for op in OPS if op.name == "sub_relu")
for sample in op.samples("cpu", torch.float32):
    torch.testing.assert_close(fuseconv.ops.sub_relu(*sample.args), op.reference(*sample.args))
for sample in op.errors("cpu"):
    try:
        fuseconv.ops.sub_relu(*sample.args)
    except RuntimeError as error:
        print(error)
a = torch.randn(3, 5, requires_grad=True)
torch.library.opcheck(torch.ops.fuseconv.sub_relu.default, (a, torch.randn(5)))
print(fuseconv.__file__)
"""


def test_the_page_adds_two_files_and_a_line() -> None:
    assert list(BLOCKS) == ["csrc/ops/sub_relu.h", "fuseconv/ops/sub_relu.py", "fuseconv/ops/__init__.py"]
    assert BLOCKS["fuseconv/ops/__init__.py"].count("\n") == 1


@pytest.mark.compiles
@pytest.mark.long
def test_they_make_an_op(tmp_path: Path) -> None:
    for name in ("csrc", "fuseconv", "rules"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    shutil.copy(ROOT / "CMakeLists.txt", tmp_path)
    for name, text in BLOCKS.items():
        path = tmp_path / name
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
            last = max(index for index, line in enumerate(lines) if line.startswith("from fuseconv.ops."))
            lines.insert(last + 1, text)
            path.write_text("".join(lines))
        else:
            path.write_text(text)
    compiler = tmp_path / "compiler"
    objects = [str(path.parents[1]) for path in ROOT.glob("build/*/CMakeFiles/fuseconv_core.dir")]
    compiler.write_text(COMPILER.format(python=sys.executable, built=objects))
    compiler.chmod(0o755)
    # Not optimized: the question is whether it builds and what it computes.
    fast = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={compiler}", "-DCMAKE_CXX_FLAGS_RELEASE="]
    fast += ["-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
    options = ["-DFUSECONV_CUDA=OFF", *fast, f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (
        ["cmake", "-S", f"{tmp_path}", "-B", f"{tmp_path}/build", "-G", "Ninja", *options],
        ["cmake", "--build", f"{tmp_path}/build", "--target", "fuseconv_cpu"],
    ):
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout[-4000:] + built.stderr[-2000:]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    called = subprocess.run([sys.executable, "-P", "-c", CALL], capture_output=True, text=True, env=environment)
    assert called.returncode == 0, called.stderr
    assert "sub_relu: a of shape [3] and b of shape [4] cannot be broadcast" in called.stdout
    assert str(tmp_path) in called.stdout
