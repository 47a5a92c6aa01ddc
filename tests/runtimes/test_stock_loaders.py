"""A bundle without fuseconv: the programs of docs/without-fuseconv.md, run where fuseconv cannot be imported."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support import ROOT
from support.libraries import with_another_schema

from fuseconv.bundle.manifest import open_bundle
from fuseconv.ops import library

PAGE = ROOT / "docs" / "without-fuseconv.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_TORCH, CHECK, WITH_ONNXRUNTIME = PROGRAM.findall(PAGE.read_text())

CLEAN = """
import sys
sys.path.append({site!r})
{program}
from importlib.util import find_spec
for name in {absent}:
    assert name not in sys.modules and find_spec(name) is None, name
"""


def clean_site(folder: Path, absent: tuple[str, ...]) -> Path:
    """A folder of installed packages that lacks some, and fuseconv, however that is installed."""
    folder.mkdir()
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if path.suffix != ".pth" and not re.match("|".join((r"_*(editable__*)?fuseconv", *absent)), path.name):
            (folder / path.name).symlink_to(path)
    return folder


@pytest.mark.parametrize(
    ("program", "absent", "targets"),
    [
        (WITH_TORCH, (), ("aoti", "export", "torchscript")),
        (WITH_ONNXRUNTIME, ("torch", "functorch"), ("onnx", "onnx-plugin")),
    ],
    ids=["torch alone", "ONNX Runtime alone"],
)
def test_the_stock_loaders_run_a_bundle_where_there_is_no_fuseconv(
    program: str, absent: tuple[str, ...], targets: tuple[str, ...], bundle: Path, tmp_path: Path
) -> None:
    shutil.copytree(bundle, tmp_path / "demo.fuseconv")
    site = clean_site(tmp_path / "site", absent)
    script = CLEAN.format(site=str(site), program=program, absent=("fuseconv", *absent))
    done = subprocess.run(  # -I and -S: no PYTHONPATH, no folder of the user's, no installed packages but those above
        [sys.executable, "-I", "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={}
    )
    assert done.returncode == 0, done.stderr
    reference, outputs = load_file(bundle / "reference.safetensors"), open_bundle(bundle).contract.outputs
    printed = [re.findall(r"^(\S+) (\S+) (\[.*\]) (\S+)$", line)[0] for line in done.stdout.splitlines()]
    assert [row[:2] for row in printed] == [(target, name) for target in targets for name in outputs]
    for _, name, shape, error in printed:
        original = reference[f"0/original/{name}"]
        assert shape == str(list(original.shape))
        assert float(error) <= 1e-5 + 1.3e-6 * original.double().abs().max()  # the tolerances of f32


@pytest.mark.parametrize("agree", [True, False])
def test_a_program_can_see_that_a_library_registered_nothing(agree: bool, tmp_path: Path) -> None:
    first, second = library.library_paths("cpu")[0], tmp_path / "demo.fuseconv/lib/libfuseconv_cpu.so"
    second.parent.mkdir(parents=True)
    shutil.copy(first, second) if agree else with_another_schema(second)
    script = f"import torch; torch.ops.load_library({str(first)!r})\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (not agree)
    assert ("AssertionError: the op add_relu has two schemas" in done.stderr) == (not agree)
