"""Faults of artifacts, calls, libraries and machines: Python and C++ end with one status, say one thing and stay alive.

The rows are a table of faults; each is made once and met by `fuseconv run` and by `fuseconv-run`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from support import small_bundle
from support.calls import MAX_BATCH, MAX_SEQ, draw
from support.machines import CPP_TARGETS, ELSEWHERE
from support.shared import made_once
from support.small_bundle import Block
from torch import Tensor

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.errors import FuseconvError, UnsupportedError, UpstreamError
from fuseconv.runtime import cpp
from fuseconv.runtime.model import load
from fuseconv.targets import TARGETS, Context

pytestmark = pytest.mark.timeout(1200)

NAMES = ("x", "skip", "keep")
INPUTS = dict(zip(NAMES, draw(3, 5), strict=True))

Meet = Callable[..., tuple[int, str]]
"""Runs a bundle on tensors; returns the exit status and what was said on stderr."""


@pytest.fixture
def meet(
    cpp_runtime: Callable[..., tuple[int, str, Path]] | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Meet:
    """Meets a fault in Python and, if the run has the C++ runtime, in C++; asserts that both end and say the same."""

    def both(
        bundle: Path, target: str, tensors: Mapping[str, Tensor] = INPUTS, cwd: Path = tmp_path
    ) -> tuple[int, str]:
        inputs, output = tmp_path / "in.safetensors", tmp_path / "out.safetensors"
        save_file({name: value.contiguous() for name, value in tensors.items()}, inputs)
        monkeypatch.chdir(cwd)
        capsys.readouterr()
        status = cli.main(["run", str(bundle), "--target", target, "--inputs", str(inputs), "-o", str(output)])
        said = capsys.readouterr().err
        assert "Traceback" not in said
        if cpp_runtime is not None:
            where = {"cwd": cwd, "LD_LIBRARY_PATH": str(cwd)}
            in_cpp, said_in_cpp, _ = cpp_runtime(bundle, tensors, "--target", target, **where)
            assert in_cpp == status, said + said_in_cpp
            # Of a build's suffix, as in 2.13.0+cpu, LibTorch knows nothing.
            assert said_in_cpp == said.replace(torch.__version__, torch.__version__.split("+")[0])
        return status, said

    return both


def made_elsewhere(bundle: Path, **fields: str | None) -> None:
    manifest = open_bundle(bundle)
    environment = manifest.environment.model_copy(update=fields)
    seal(bundle, manifest.model_copy(update={"environment": environment}))


# ---- an artifact for another machine, or made by what is newer ----


@pytest.mark.parametrize(("field", "value", "target", "words"), ELSEWHERE)
def test_what_was_made_elsewhere_is_refused_with_both_versions_before_a_library_is_loaded(
    field: str, value: str, target: str, words: str, meet: Meet, bundle_copy: Path, loaded: Callable[[], bool]
) -> None:
    made_elsewhere(bundle_copy, **{field: value})
    status, said = meet(bundle_copy, target)
    assert status == 4
    assert words in said
    assert not loaded()


# ---- calls at the edges of the contract, and over them ----


@pytest.mark.parametrize("target", CPP_TARGETS)
def test_calls_at_the_edges_of_the_contract_are_right(target: str, programs: Path, bundle: Path) -> None:
    """One process makes them all, as a server does: one size after the other."""
    sizes = [(1, 1), (1, MAX_SEQ), (MAX_BATCH, 1), (MAX_BATCH, MAX_SEQ), (3, 7)]
    calls = [dict(zip(NAMES, draw(*size), strict=True)) for size in sizes]
    model, eager = load(bundle, target), Block(fused=False).eval()
    results = cpp.run(programs / "fuseconv-run", bundle, target, calls, device="cpu")
    for call, result in zip(calls, results, strict=True):
        with torch.no_grad():
            expected = eager(**call)
        for name, one, value in zip(model.contract.outputs, model(**call), expected, strict=True):
            torch.testing.assert_close(one, value, rtol=1e-5, atol=1e-5)
            assert torch.equal(result[name], one)


X, SKIP, KEEP = draw(3, 5)
OVER: dict[str, tuple[tuple[Tensor, ...], str]] = {
    "batch 0": (draw(0, 5), "x has size 0 at axis 0, outside batch:1..16"),
    "batch above": (draw(MAX_BATCH + 1, 5), "x has size 17 at axis 0, outside batch:1..16"),
    "seq 0": (draw(3, 0), "x has size 0 at axis 1, outside seq:1..32"),
    "seq above": (draw(3, MAX_SEQ + 1), "x has size 33 at axis 1, outside seq:1..32"),
    "tied": ((X, SKIP[:, :4], KEEP), "skip has seq=4 at axis 1, but x has 5"),
    "tied, a mask": ((X, SKIP, KEEP[:2]), "keep has batch=2 at axis 0, but x has 3"),
    "static": ((X[..., :7], SKIP, KEEP), "x has size 7 at axis 2, but the contract says 8"),
    "dtype": ((X.double(), SKIP, KEEP), "x has dtype f64, but the contract says f32"),
    "dtype of one size": ((X.view(torch.int32), SKIP, KEEP), "x has dtype i32, but the contract says f32"),
    "dtype, a mask": ((X, SKIP, KEEP.to(torch.uint8)), "keep has dtype u8, but the contract says bool"),
    "rank": ((X[0], SKIP, KEEP), "x has 2 dims [5, 8], but the contract says 3"),
    "rank above": ((X[None], SKIP, KEEP), "x has 4 dims [1, 3, 5, 8], but the contract says 3"),
}


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("target", CPP_TARGETS)
@pytest.mark.parametrize("name", OVER)
def test_a_call_over_the_edge_is_an_error_and_never_a_number(name: str, target: str, meet: Meet, bundle: Path) -> None:
    tensors, words = OVER[name]
    status, said = meet(bundle, target, dict(zip(NAMES, tensors, strict=True)))
    assert status == 2
    assert said.startswith(f"error: input {words}\n")
    assert "\n  fix: pass " in said


@pytest.mark.parametrize("given", [{}, {"x": X}, {**INPUTS, "more": X}, {"x": X, "skip": SKIP, "mask": KEEP}])
def test_other_inputs_are_a_usage_error_of_a_file_and_of_a_call(
    given: Mapping[str, Tensor], run_in_cpp: Callable[..., tuple[int, str, Path]], bundle: Path
) -> None:
    with pytest.raises(
        FuseconvError, match=r"the model takes 3 inputs \(x, skip, keep\), but the call passes"
    ) as caught:
        load(bundle, "torchscript")(**given)
    status, said, _ = run_in_cpp(bundle, given, "--target", "torchscript")
    assert (status, said) == (caught.value.exit_status, f"error: {caught.value}\n")


@pytest.mark.parametrize("target", CPP_TARGETS)
def test_strides_of_every_kind_give_the_same_numbers(target: str, bundle: Path) -> None:
    """Files have no strides, so Python alone can be given them; every one of its calls in C++'s layout is above."""
    model = load(bundle, target)
    expected = model(X, SKIP, KEEP)
    reversed_twice = X.flip(1).flip(1)
    for x in (X.mT.contiguous().mT, torch.stack([X, X], -1)[..., 1], reversed_twice, X.repeat(2, 1, 1)[3:]):
        for one, value in zip(model(x, SKIP.transpose(0, 1).clone().transpose(0, 1), KEEP), expected, strict=True):
            assert torch.equal(one, value)


# ---- op libraries ----

CALLED = {"aoti": "libfuseconv_cpu.so", "torchscript": "libfuseconv_cpu.so", "onnx-plugin": "libfuseconv_ort_cpu.so"}
"""The library that a target calls."""


def remove(library: Path) -> str:
    library.unlink()
    return f"lib/{library.name} is missing"


def exchange(library: Path) -> str:
    data = bytearray(library.read_bytes())
    data[-1] ^= 1
    library.write_bytes(data)
    return f"lib/{library.name} does not have the sha256 in the manifest"


def open_to_all(library: Path) -> str:
    library.chmod(0o757)
    return f"{library.name}, from which code is loaded, is writable by everyone"


def open_its_folder(library: Path) -> str:
    library.parent.chmod(0o777)
    return "lib, from which code is loaded, is writable by everyone"


def open_the_bundle(library: Path) -> str:
    library.parent.parent.chmod(0o777)
    return "copy.fuseconv, from which code is loaded, is writable by everyone"


@pytest.mark.parametrize("target", CPP_TARGETS)
def test_an_artifact_that_everybody_may_write_is_refused(
    target: str, meet: Meet, bundle_copy: Path, loaded: Callable[[], bool]
) -> None:
    """It is code as a library is; and of ONNX the weights beside it are part of it."""
    artifact = bundle_copy / open_bundle(bundle_copy).targets[target]
    beside = max(artifact.parent.iterdir())
    beside.chmod(0o646)
    status, said = meet(bundle_copy, target)
    assert status == 3
    assert f"{beside.name}, from which code is loaded, is writable by everyone" in said
    assert not loaded()


def test_a_pipe_in_the_place_of_the_manifest_is_refused(meet: Meet, bundle_copy: Path) -> None:
    (bundle_copy / "manifest.json").unlink()
    os.mkfifo(bundle_copy / "manifest.json")
    status, said = meet(bundle_copy, "torchscript")
    assert status == 3
    assert "manifest.json is damaged: it is a pipe, not a file" in said


@pytest.mark.parametrize("target", CALLED)
@pytest.mark.parametrize("fault", [remove, exchange, open_to_all, open_its_folder, open_the_bundle])
def test_a_library_that_is_not_the_bundles_own_is_refused_by_path(
    fault: Callable[[Path], str], target: str, meet: Meet, bundle_copy: Path, loaded: Callable[[], bool]
) -> None:
    words = fault(bundle_copy / "lib" / CALLED[target])
    status, said = meet(bundle_copy, target)
    assert status == 3
    assert words in said
    assert f"\n  at: {bundle_copy}" in said
    assert not loaded()


def test_a_plugin_that_the_manifest_does_not_have_is_missing(meet: Meet, bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    (bundle_copy / "lib/libfuseconv_ort_cpu.so").unlink()
    seal(bundle_copy, manifest)
    status, said = meet(bundle_copy, "onnx-plugin")
    assert status == 3
    assert f"is missing\n  at: {bundle_copy}/lib/libfuseconv_ort_cpu.so\n" in said


def test_a_library_that_a_target_does_not_call_is_not_asked_for(meet: Meet, bundle_copy: Path) -> None:
    for name in CALLED.values():
        (bundle_copy / "lib" / name).chmod(0o757)
    assert meet(bundle_copy, "onnx") == (0, "")


@pytest.mark.parametrize("target", CPP_TARGETS)
def test_what_is_planted_in_the_working_directory_is_not_loaded(
    target: str, meet: Meet, bundle: Path, bundle_copy: Path, loaded: Callable[[], bool], tmp_path: Path
) -> None:
    """Neither as it is named in the bundle, nor where a search path would find it."""
    planted = tmp_path / "cwd"
    (bundle_copy / "lib").rename(planted)
    planted.joinpath("lib").mkdir()
    for library in [path for path in planted.iterdir() if path.is_file()]:
        planted.joinpath("lib", library.name).write_bytes(library.read_bytes())
    assert meet(bundle, target, cwd=planted) == (0, "")
    assert not loaded()


@pytest.mark.parametrize("target", CALLED)
def test_a_library_that_serves_no_op_is_loaded_and_said_to_be_wrong(
    target: str, run_in_cpp: Callable[..., tuple[int, str, Path]], bundle_copy: Path, loaded: Callable[[], bool]
) -> None:
    """The mark that the tests above look for is seen: the bundle's own libraries leave it here."""
    status, said, _ = run_in_cpp(bundle_copy, INPUTS, "--target", target)
    assert loaded()
    if target == "onnx-plugin":
        with pytest.raises(UnsupportedError, match="failed to load the op library: ") as caught:
            load(bundle_copy, target)
        assert "failed to load the op library: " in said
        assert said.endswith(f"\n  at: {caught.value.where}\n  fix: {caught.value.fix}\n")
    assert status == (4 if target == "onnx-plugin" else 5)


# ---- machines ----


@pytest.mark.parametrize("target", CPP_TARGETS)
def test_without_a_gpu_a_bundle_for_one_is_an_error_with_a_hint(
    target: str, meet: Meet, bundle_copy: Path, loaded: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    manifest = open_bundle(bundle_copy)
    contract = type(manifest.contract)(manifest.contract.inputs, manifest.contract.outputs, "cuda")
    environment = manifest.environment.model_copy(update={"gpu": "9.0"})
    seal(bundle_copy, manifest.model_copy(update={"contract": contract, "environment": environment}))
    status, said = meet(bundle_copy, target)
    assert status == 5
    assert said.startswith("error: no CUDA device is available\n")
    assert "\n  fix: check nvidia-smi" in said
    assert not loaded()


class Power(torch.nn.Module):
    """Gives 2 x_i at i, j, k, l: n^4 elements at once, more than any machine has."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x[:, None, None, None].expand(-1, x.shape[0], x.shape[0], x.shape[0])
        return wide + wide


DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


@pytest.fixture(scope="module", params=DEVICES)
def power(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets = ["aoti", "export", "torchscript", "onnx"] if request.param == "cpu" else ["export", "torchscript"]

    def write(output: Path) -> None:
        program = small_bundle.program(Power(), ("x=f32[n:1..32767]",), device=request.param)
        small_bundle.write_bundle(program, program, output, targets, scratch=tmp_path_factory.mktemp("power"))

    return made_once(tmp_path_factory, f"power-{request.param}.fuseconv", write)


@pytest.mark.parametrize("target", ["aoti", "export", "torchscript", "onnx"])
def test_out_of_memory_is_an_error_with_a_hint_and_the_process_lives(
    target: str, power: Path, run_in_cpp: Callable[..., tuple[int, str, Path]], tmp_path: Path
) -> None:
    if target not in open_bundle(power).targets:
        return
    model = load(power, target)
    x = torch.ones(32767, device=model.device)
    with pytest.raises(UpstreamError, match=f"the target {target} failed: ") as caught:
        model(x)
    assert caught.value.exit_status == 5
    assert model(x[:3]).sum().item() == 2 * 81
    if target == "export":
        return
    status, said, _ = run_in_cpp(power, {"x": x}, "--target", target)
    assert status == 5
    assert f"error: the target {target} failed: " in said  # AOTInductor has its own line before it
    assert "Exception raised from" not in said
    assert said.endswith(f"\n  at: {caught.value.where}\n  fix: {caught.value.fix}\n")


FAULTS = {
    "an illegal access": ("import ctypes\nctypes.string_at(0)\n", "killed by SIGSEGV"),
    "an abort": ("import os\nos.abort()\n", "killed by SIGABRT"),
    "no memory": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "killed by SIGKILL"),
    "an error": ("raise SystemError('the device is lost')\n", "SystemError: the device is lost"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_compiler_that_dies_leaves_its_parent_alive(name: str, tmp_path: Path) -> None:
    """What it dies of is in a file that registers ops: the child runs it in the compiler's process."""
    code, words = FAULTS[name]
    fault = tmp_path / "fault.py"
    fault.write_text(code)
    program = small_bundle.program(torch.nn.Linear(8, 4), ("x=f32[3,8]",))
    with pytest.raises(UpstreamError, match=words) as caught:
        TARGETS["aoti"].write(program, tmp_path, Context(tmp_path, (fault,)))
    assert caught.value.exit_status == 5
    assert caught.value.fix == "leave the target aoti out"
    path = tmp_path / TARGETS["torchscript"].write(program, tmp_path, Context(tmp_path))
    assert TARGETS["torchscript"].load(path, "cpu")(torch.ones(3, 8))[0].shape == (3, 4)


def test_an_artifact_that_does_not_load_is_an_error_with_a_hint(
    run_in_cpp: Callable[..., tuple[int, str, Path]], bundle_copy: Path
) -> None:
    """The checksums are right, so a writer was wrong, or the memory short: torch's words follow ours."""
    manifest = open_bundle(bundle_copy)
    (bundle_copy / "torchscript/model.pt").write_bytes(b"no archive")
    seal(bundle_copy, manifest)
    with pytest.raises(UpstreamError, match="the target torchscript failed to load: ") as caught:
        load(bundle_copy, "torchscript")
    status, said, _ = run_in_cpp(bundle_copy, INPUTS, "--target", "torchscript")
    assert status == caught.value.exit_status == 5
    assert said.startswith("error: the target torchscript failed to load: ")
    assert said.endswith(f"\n  at: {caught.value.where}\n  fix: {caught.value.fix}\n")
