"""The C++ runtime loads the package of its machine, or the next target, and refuses as Python does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.heads import Heads
from support.machines import elsewhere, fewer_instructions

from fuseconv.bundle.manifest import open_bundle, seal

pytestmark = pytest.mark.timeout(1200)  # the build of the runtime

Run = Callable[..., tuple[int, str, Path]]
HERE = torch.backends.cpu.get_cpu_capability().lower()
X = {"x": torch.linspace(-2, 2, 160).reshape(2, 5, 16)}

REFUSED = """
import sys, fuseconv
try:
    fuseconv.load(sys.argv[1], target="aoti")
except fuseconv.errors.FuseconvError as error:
    print("error:", error)
"""


def with_a_damaged_package(bundle: Path, package: str, copy: Path) -> Path:
    """A bundle that loads everywhere except where this package is the machine's."""
    shutil.copytree(bundle, copy)
    manifest = open_bundle(copy)
    for path in (copy / package).rglob("*"):
        if path.suffix in {".so", ".pt2"}:
            path.write_bytes(b"no library")
    seal(copy, manifest)
    return copy


@pytest.mark.parametrize("words", [("--target", "aoti"), ()])
def test_each_machine_loads_its_package(
    words: tuple[str, ...], run_in_cpp: Run, packages_folder: Path, tmp_path: Path
) -> None:
    bundle, lower = packages_folder / "two.fuseconv", fewer_instructions()
    first, added = (package.path.partition("/")[0] for package in open_bundle(bundle).packages_of("aoti"))
    for number, (capability, own, other) in enumerate([(HERE, first, added), (lower, added, first)]):
        right = with_a_damaged_package(bundle, other, tmp_path / f"right{number}.fuseconv")
        status, said, outputs = run_in_cpp(right, X, *words, ATEN_CPU_CAPABILITY=capability)
        assert (status, said) == (0, "")
        torch.testing.assert_close(load_file(outputs)["output_0"], Heads(0)(X["x"]))
        wrong = with_a_damaged_package(bundle, own, tmp_path / f"wrong{number}.fuseconv")
        status, said, _ = run_in_cpp(wrong, X, *words, ATEN_CPU_CAPABILITY=capability)
        assert status == 5
        assert said.startswith("error: the target aoti failed to load: ")


def test_a_machine_without_a_package_loads_the_next_target(run_in_cpp: Run, packages_folder: Path) -> None:
    """In C++ this is torchscript, because there is no torch.export."""
    lower, bundle = fewer_instructions(), packages_folder / "one.fuseconv"
    status, said, outputs = run_in_cpp(bundle, X, ATEN_CPU_CAPABILITY=lower)
    assert (status, said) == (0, "")
    torch.testing.assert_close(load_file(outputs)["output_0"], Heads(0)(X["x"]))


@pytest.mark.parametrize("name", ["one", "two"])
def test_without_a_package_the_target_is_refused_as_in_python(
    name: str, run_in_cpp: Run, packages_folder: Path
) -> None:
    lower = "default" if name == "two" else fewer_instructions()
    if name == "two" and fewer_instructions() == "default":
        pytest.skip("every machine has a package")
    bundle = packages_folder / f"{name}.fuseconv"
    status, said, _ = run_in_cpp(bundle, X, "--target", "aoti", ATEN_CPU_CAPABILITY=lower)
    assert status == 4
    assert said == elsewhere(lower, REFUSED, bundle)
