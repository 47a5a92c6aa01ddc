"""The C++ runtime: the behavior and messages of fuseconv.load, without Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import ROOT
from support.calls import VIOLATIONS
from support.cpp_calls import INPUTS, NAMES, assert_same_refusal
from support.libraries import with_another_schema

from fuseconv.bundle.files import SIGNATURE
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.bundle.tuned import Speed, Tuned
from fuseconv.errors import UnsupportedError
from fuseconv.ops import library
from fuseconv.runtime.environment import device_name
from fuseconv.runtime.model import load

# The build takes a compiler half a minute for LibTorch's headers alone.
pytestmark = pytest.mark.timeout(1200)
TARGETS = ["aoti", "torchscript", "onnx-plugin", "onnx"]


@pytest.mark.parametrize("target", TARGETS)
def test_outputs_are_pythons(target: str, run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path) -> None:
    status, text, path = run_in_cpp(bundle, INPUTS, "--target", target)
    assert (status, text) == (0, "")
    results, expected = load_file(path), load(bundle, target)(**INPUTS)
    assert list(results) == list(expected._fields)
    for name, value in expected._asdict().items():
        torch.testing.assert_close(results[name], value, rtol=0, atol=0)


CALLS: dict[str, dict[str, Any]] = {
    name: {**dict(zip(NAMES, args, strict=False)), **kwargs}
    for name, (args, kwargs, _) in VIOLATIONS.items()
    if len(args) + len(kwargs) <= len(NAMES)  # a file has each name once
    and all(isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in (*args, *kwargs.values()))
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_against_the_contract_is_refused_in_pythons_words(
    name: str, run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path
) -> None:
    assert_same_refusal(run_in_cpp, bundle, "torchscript", CALLS[name])


# A tensor of C++ is what its maker says: a shape, and bytes beside it. Python's cannot disagree.
REFUSED = {
    'call("f32", {3, 2}, 23)': "input x has 23 bytes, which does not match [3, 2] of f32",
    'call("f32", {3, 2}, 25)': "input x has 25 bytes, which does not match [3, 2] of f32",
    'call("f32", {3, 2}, 0)': "input x has 0 bytes, which does not match [3, 2] of f32",
    'call("f32", {0, 2}, 4)': "input x has 4 bytes, which does not match [0, 2] of f32",
    'call("i64", {3, 2}, 24)': "input x has 24 bytes, which does not match [3, 2] of i64",
    'call("c64", {3, 2}, 48)': "input x has 48 bytes, which does not match [3, 2] of c64",
    'call("f32", {4294967296, 4294967296}, 0)': "input x has 0 bytes, which does not match "
    "[4294967296, 4294967296] of f32",
    'call("f32", {3, 2}, 24)': "accepted",
    'call("f32", {0, 2}, 0)': "accepted",
    'call("f32", {}, 4)': "accepted",
    'call("bool", {3, 2}, 6)': "accepted",
    'call("f32", {6}, 24, 4)': "input x has size 6 at axis 0, not a multiple of 4",
    'call("f32", {8}, 32, 4)': "accepted",
}
REFUSED_SOURCE = """
#include <iostream>
#include "fuseconv/contract.h"
#include "fuseconv/error.h"
using namespace fuseconv::runtime;
void call(std::string dtype, std::vector<int64_t> shape, size_t bytes, int64_t step = 1) {
  Contract contract{{{"x", dtype, {}}}, {"y"}, "cpu", {}};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    contract.inputs[0].shape.push_back({0, "d" + std::to_string(axis), 0, int64_t{1} << 40, step});
  }
  try {
    contract.bind({{"x", Tensor{dtype, shape, std::vector<char>(bytes)}}});
    std::cout << "accepted\\n";
  } catch (const Error& error) {
    std::cout << error.what() << "\\n";
  }
}
int main() {
"""


def test_a_tensor_that_is_not_filled_or_no_multiple_is_refused(tmp_path: Path) -> None:
    source = REFUSED_SOURCE + ";\n".join(REFUSED) + ";\n}\n"
    runtime, program = ROOT / "csrc/runtime", tmp_path / "calls"
    command: list[str | Path] = [
        "c++",
        "-std=c++20",
        "-I",
        runtime / "include",
        "-x",
        "c++",
        "-",
        runtime / "contract.cpp",
        "-o",
        program,
    ]
    subprocess.run(command, input=source, text=True, check=True)
    assert subprocess.run([program], capture_output=True, text=True).stdout.splitlines() == list(REFUSED.values())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "missing": lambda b: (b / "plan.json").unlink(),
    "cut_short": lambda b: (b / "plan.json").write_bytes(b"{"),
    "one_bit": lambda b: flip(b / "torchscript/model.pt"),
    "extra": lambda b: (b / "lib/libother.so").touch(),
    "empty_folder": lambda b: (b / "empty").mkdir(),
    "link": lambda b: (b / "link").symlink_to("/etc/passwd"),
    "no_manifest": lambda b: (b / "manifest.json").unlink(),
    "manifest_edited": lambda b: (b / "manifest.json").write_bytes(
        (b / "manifest.json").read_bytes().replace(b'"mismatch": false', b'"mismatch": true')
    ),
    "manifest_respelled": lambda b: (b / "manifest.json").write_bytes((b / "manifest.json").read_bytes() + b" "),
    "library_for_all": lambda b: (b / "lib/libfuseconv_cpu.so").chmod(0o757),
    "weights_for_all": lambda b: (b / "weights.safetensors").chmod(0o757),
    "unpacked_library_for_all": lambda b: next(b.glob("aoti/*/**/*.so")).chmod(0o757),
    "unpacked_folder_for_all": lambda b: next(b.glob("aoti/*/data")).chmod(0o777),
    "folder_for_all": lambda b: (b / "lib").chmod(0o777),
    "no_bundle": shutil.rmtree,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_in_pythons_words(
    damage: str, run_in_cpp: Callable[..., tuple[int, str, Path]], bundle_copy: Path
) -> None:
    DAMAGE[damage](bundle_copy)
    assert_same_refusal(run_in_cpp, bundle_copy, "aoti" if damage.startswith("unpacked") else "torchscript")


def test_a_signature_is_no_file_that_the_manifest_must_list(
    run_in_cpp: Callable[..., tuple[int, str, Path]], bundle_copy: Path
) -> None:
    (bundle_copy / SIGNATURE).write_text("{}")
    assert run_in_cpp(bundle_copy, INPUTS, "--target", "torchscript")[0] == 0
    (bundle_copy / "lib" / SIGNATURE).write_text("{}")
    assert_same_refusal(run_in_cpp, bundle_copy, "torchscript")


def test_an_unknown_target_is_a_usage_error(run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path) -> None:
    status, text, _ = run_in_cpp(bundle, INPUTS, "--target", "tflite")
    assert status == 2
    assert "the bundle has no target tflite" in text


def test_the_best_target_is_the_default(run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path) -> None:
    assert run_in_cpp(bundle, INPUTS)[0] == 0


@pytest.mark.parametrize("here", [True, False], ids=["here", "elsewhere"])
def test_the_fastest_target_of_this_device_is_the_default(
    here: bool, run_in_cpp: Callable[..., tuple[int, str, Path]], bundle_copy: Path
) -> None:
    """ONNX Runtime is declared to be too old for the target onnx, so that an error names the target that was chosen."""
    manifest = open_bundle(bundle_copy)
    speeds = {
        name: Speed(us=us, fused_us=us, unfused_us=us, noise_us=0, measured=0, classes=0)
        for name, us in (("onnx", 1.0), ("aoti", 10.0))
    }
    tuned = Tuned(device=device_name("cpu") if here else "another", speeds=speeds)
    newer = manifest.environment.model_copy(update={"onnxruntime": "99.0"})
    seal(bundle_copy, manifest.model_copy(update={"tuned": tuned, "environment": newer}))
    status, text, _ = run_in_cpp(bundle_copy, INPUTS)
    assert status == (4 if here else 0)
    assert ("the target onnx was built for ONNX Runtime 99.0" in text) == here


def test_a_library_with_another_schema_is_refused_in_pythons_words(
    programs: Path, bundle: Path, bundle_copy: Path, tmp_path: Path
) -> None:
    with_another_schema(bundle_copy / "lib/libfuseconv_cpu.so")
    seal(bundle_copy, open_bundle(bundle))
    with pytest.raises(UnsupportedError) as caught:
        load(bundle_copy, "torchscript")
    save_file(INPUTS, tmp_path / "inputs.safetensors")
    program, results = programs / "fuseconv-run", ("-o", str(tmp_path / "results.safetensors"))
    done = subprocess.run(
        [program, bundle_copy, "--target", "torchscript", "--inputs", tmp_path / "inputs.safetensors", *results],
        capture_output=True,
        text=True,
        env=os.environ | {"LD_PRELOAD": str(library.library_paths("cpu")[0])},
    )
    assert done.stderr.endswith(f"error: {caught.value}\n")
    assert done.returncode == caught.value.exit_status


def test_a_file_that_is_no_safetensors_is_refused(programs: Path, bundle: Path, tmp_path: Path) -> None:
    for content in (b"", b"\xff" * 16, b"\x08\0\0\0\0\0\0\0notjson!", b"\x02\0\0\0\0\0\0\0[]"):
        (tmp_path / "bad").write_bytes(content)
        command: list[str | Path] = [
            programs / "fuseconv-run",
            bundle,
            "--target",
            "torchscript",
            "--inputs",
            tmp_path / "bad",
            "-o",
            "x",
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode in (2, 3)
        assert "bug" not in done.stderr


def test_the_program_says_how_it_is_used(programs: Path) -> None:
    for word in ("--help", "-h"):
        done = subprocess.run([programs / "fuseconv-run", word], capture_output=True, text=True)
        assert done.returncode == 0
        assert done.stdout.startswith("Usage: fuseconv-run BUNDLE ")


@pytest.mark.parametrize("words", [[], ["bundle"], ["bundle", "torchscript"], ["a", "b", "c", "d"]])
def test_the_sample_says_how_it_is_used(words: list[str], programs: Path) -> None:
    done = subprocess.run([programs / "embed", *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "usage: embed BUNDLE TARGET INPUTS.safetensors\n")


def test_the_sample_prints_what_its_page_says(programs: Path, bundle: Path) -> None:
    reference = load_file(bundle / "reference.safetensors")
    inputs = bundle.parent / "inputs.safetensors"
    save_file({name: reference[f"0/input/{name}"] for name in NAMES}, inputs)
    done = subprocess.run([programs / "embed", bundle, "torchscript", inputs], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["output_0", "output_1", "output_2", "output_3"]
    assert float(lines[0].split()[-1]) == pytest.approx(reference["0/original/output_0"].sum().item(), rel=1e-3)


def test_the_wheel_has_the_sources() -> None:
    listed = {path.relative_to(ROOT / "csrc/runtime").as_posix() for path in (ROOT / "csrc/runtime").rglob("*.*")}
    config = (ROOT / "csrc/runtime/fuseconv-config.cmake").read_text()
    assert all(name in config for name in listed if name.endswith(".cpp"))
    assert "csrc/runtime/" in (ROOT / "CMakeLists.txt").read_text()
    assert sys.byteorder == "little"  # as safetensors.cpp assumes
