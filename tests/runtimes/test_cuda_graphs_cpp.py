"""CUDA graphs in C++: compiled if CUDA headers are found, built and run if LibTorch has CUDA."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import ROOT, generating
from support.cpp_calls import INPUTS, assert_same_refusal, built_from_sources
from support.graphs import BUCKETS, draw

from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.errors import UsageError
from fuseconv.runtime import cpp
from fuseconv.runtime.model import load
from fuseconv.weights.table import Table

pytestmark = pytest.mark.timeout(1200)
TARGETS = ["aoti", "torchscript"]
NAMES = ("x", "skip", "keep")
RUNTIME = ROOT / "csrc" / "runtime"
Run = Callable[..., tuple[int, str, Path]]


def cuda_headers() -> Path | None:
    """The toolkit's folder of headers, or None."""
    nvcc = shutil.which("nvcc")
    homes = [os.environ.get("CUDA_HOME"), Path(nvcc).resolve().parents[1] if nvcc else None, "/usr/local/cuda"]
    folders = [Path(home) / "include" for home in homes if home]
    return next((folder for folder in folders if (folder / "cuda_runtime_api.h").is_file()), None)


@pytest.mark.compiles
@pytest.mark.skipif(cuda_headers() is None, reason="needs the headers of CUDA's toolkit")
@pytest.mark.parametrize("source", [RUNTIME / "cuda_graphs.cpp", ROOT / "tests/cpp/replay.cpp"], ids=lambda p: p.name)
def test_it_compiles_also_where_libtorch_has_no_cuda(source: Path) -> None:
    """The wheel of torch for CPUs has the headers, but for one that its own build would have written."""
    torchs = Path(torch.__file__).parent / "include"
    headers = cuda_headers()
    assert headers is not None
    command = ["c++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-I", f"{RUNTIME}/include"]
    if torch.version.cuda is None:
        command.append("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE")
    for folder in (torchs, torchs / "torch/csrc/api/include", headers):
        command += ["-isystem", f"{folder}"]
    done = subprocess.run([*command, "-I", RUNTIME, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("target", ["torchscript", "onnx"])
def test_graphs_that_cannot_be_are_refused_in_pythons_words(target: str, run_in_cpp: Run, bundle: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(bundle, target, cuda_graphs=True)
    status, text, _ = run_in_cpp(bundle, INPUTS, "--target", target, "--cuda-graphs", "on")
    assert (status, text) == (2, f"error: {caught.value}\n")


@pytest.mark.parametrize(
    ("choice", "status", "text"),
    [
        ("off", 0, ""),
        ("auto", 0, "note: no CUDA graphs: the bundle is for cpu\n"),
        ("always", 2, "--cuda-graphs is always"),
    ],
)
def test_the_choice(choice: str, status: int, text: str, run_in_cpp: Run, bundle: Path) -> None:
    found, said, path = run_in_cpp(bundle, INPUTS, "--target", "torchscript", "--cuda-graphs", choice)
    assert found == status
    assert text in said if text else said == ""
    if status == 0:
        expected = load(bundle, "torchscript")(**INPUTS)
        assert torch.equal(load_file(path)["output_0"], expected.output_0)


@pytest.mark.parametrize(("memory", "status"), [("0", 0), ("1000000000000", 0), ("-1", 2), ("1e9", 2), ("much", 2)])
def test_the_limit_of_memory(memory: str, status: int, run_in_cpp: Run, bundle: Path) -> None:
    found, said, _ = run_in_cpp(bundle, INPUTS, "--target", "torchscript", "--cuda-graphs-memory", memory)
    assert found == status
    assert (f"--cuda-graphs-memory is {memory}" in said) == (status != 0)


def test_a_bundle_with_buckets_is_read(run_in_cpp: Run, bundle_copy: Path) -> None:
    manifest = open_bundle(bundle_copy)
    contract = replace(manifest.contract, buckets=BUCKETS)
    seal(bundle_copy, manifest.model_copy(update={"contract": contract}))
    assert run_in_cpp(bundle_copy, INPUTS, "--target", "torchscript")[:2] == (0, "")
    assert_same_refusal(run_in_cpp, bundle_copy, "torchscript", {**INPUTS, "x": INPUTS["x"][:2]})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_from_sources(tmp_path_factory.mktemp("build"), "replay", "methods", "fuseconv-run")


def saved(folder: Path, batch: int, seq: int, seed: int = 0) -> Path:
    path = folder / f"{batch}-{seq}-{seed}.safetensors"
    save_file({name: value.cpu().contiguous() for name, value in zip(NAMES, draw(batch, seq, seed), strict=True)}, path)
    return path


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS)
def test_the_bytes_are_the_artifacts_on_every_thread(
    target: str, built: Path, graphs_bundle: Path, tmp_path: Path
) -> None:
    files = [saved(tmp_path, batch, seq) for batch in range(1, 17) for seq in (1, 3, 5, 7, 9)]  # more than are kept
    done = subprocess.run([built / "replay", graphs_bundle, target, *files], capture_output=True, text=True)
    print(target, done.stdout.split(), done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    told = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    assert (told["wrong"], told["graphs"], told["reason"]) == ("0", "64", "")
    assert int(told["memory"]) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("choice", ["auto", "off", "on"])
def test_fuseconv_run_gives_pythons_bits(
    choice: str, target: str, built: Path, graphs_bundle: Path, tmp_path: Path
) -> None:
    expected = load(graphs_bundle, target, cuda_graphs=True)(*draw(3, 5))._asdict()
    assert_run_gives(expected, [built / "fuseconv-run", graphs_bundle, "--cuda-graphs", choice], target, tmp_path)


@pytest.mark.gpu
def test_buckets_are_rounded_up_to_as_in_python(built: Path, padded_bundle: Path, tmp_path: Path) -> None:
    expected = load(padded_bundle, "torchscript", cuda_graphs=True)(*draw(3, 5))._asdict()
    command: list[Path | str] = [built / "fuseconv-run", padded_bundle, "--cuda-graphs", "on"]
    assert_run_gives(expected, command, "torchscript", tmp_path)


@pytest.mark.gpu
def test_methods_share_the_weights_and_a_capture_does_not_advance_the_state(built: Path, tmp_path: Path) -> None:
    """The cache is written in place, so a capture must not call the artifact twice with the same buffers."""
    generating.write_page(tmp_path / "cuda", ["torchscript"], "cuda")
    bundle = tmp_path / "cuda/llama.fuseconv"
    decode = load(bundle / "methods/decode", "torchscript")
    tokens = torch.tensor([[9], [11]], device="cuda")
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), **decode.zero_state(batch=2)}
    expected = decode(**inputs)._asdict()
    given, outputs = tmp_path / "in.safetensors", [tmp_path / f"{name}.safetensors" for name in range(3)]
    save_file({name: tensor.cpu() for name, tensor in inputs.items()}, given)
    words = [word for output in outputs[1:] for word in ("--inputs", given, "-o", output)]
    run: list[Path | str] = [built / "fuseconv-run", bundle / "methods/decode", "--target", "torchscript"]
    commands: list[list[Path | str]] = [
        [built / "methods", bundle, "torchscript", given, outputs[0]],
        [*run, "--cuda-graphs", "on", *words],
    ]
    environment = {**os.environ, **cpp.libraries("cuda")}
    said = [subprocess.run(command, capture_output=True, text=True, env=environment) for command in commands]
    assert [done.returncode for done in said] == [0, 0], [done.stderr for done in said]
    tables = [Table.of(bundle / "methods" / name / "torchscript/model.pt") for name in ("prefill", "decode")]
    distinct = set.union(*(table.keys for table in tables if table is not None))
    assert f"addresses {len(distinct)}" in said[0].stdout.splitlines()
    for output in outputs:
        for name, tensor in load_file(output).items():
            torch.testing.assert_close(tensor, expected[name].cpu())


def assert_run_gives(expected: dict[str, torch.Tensor], command: list[Path | str], target: str, folder: Path) -> None:
    output = folder / "outputs.safetensors"
    words: list[Path | str] = ["--target", target, "--inputs", saved(folder, 3, 5), "-o", output]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    results = load_file(output)
    for name, value in expected.items():
        torch.testing.assert_close(results[name], value.cpu(), rtol=0, atol=0, equal_nan=True)
