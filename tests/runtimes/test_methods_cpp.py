"""The C++ runtime loads a method of a bundle, and generates the tokens that Python generates."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import generating
from support.cpp_calls import assert_same_refusal

from fuseconv.runtime import cpp
from fuseconv.runtime.model import load
from fuseconv.targets import spec_of
from fuseconv.weights.table import Table

pytestmark = pytest.mark.timeout(1200)  # the build of the runtime


@pytest.mark.parametrize("target", ["torchscript", "onnx"])
def test_a_method_computes_what_it_computes_in_python(
    target: str, run_in_cpp: Callable[..., tuple[int, str, Path]], generating_folder: Path
) -> None:
    decode = load(generating_folder / "llama.fuseconv/methods/decode", target=target)
    inputs = {"input_ids": torch.tensor([[9], [11]]), "attention_mask": torch.ones(2, 1, dtype=torch.int64)}
    inputs |= decode.zero_state(batch=2)
    status, text, path = run_in_cpp(generating_folder / "llama.fuseconv/methods/decode", inputs, "--target", target)
    assert (status, text) == (0, "")
    for name, tensor in decode(**inputs)._asdict().items():
        torch.testing.assert_close(load_file(path)[name], tensor, rtol=0, atol=0)


@pytest.mark.parametrize("target", [[], ["onnx"]], ids=str)
def test_the_sample_generates_the_tokens_of_the_model(
    target: list[str], programs: Path, generating_folder: Path, tmp_path: Path
) -> None:
    inputs, prompts = generating.inputs_of("llama"), tmp_path / "prompts.safetensors"
    save_file(inputs, prompts)
    command: list[str | Path] = [programs / "generate", generating_folder / "llama.fuseconv", prompts, "9", *target]
    environment = {**os.environ, **cpp.libraries("cpu")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = torch.tensor([[int(token) for token in line.split()] for line in done.stdout.splitlines()])
    original = generating.page_model(generating_folder)
    original.generation_config.eos_token_id = None  # the sample does not stop
    expected = original.generate(**inputs, max_new_tokens=9, do_sample=False)
    assert torch.equal(found.T, expected[:, 7:])


@pytest.mark.parametrize("target", ["aoti", "torchscript"])
def test_the_methods_share_the_weights_also_when_one_is_released(
    target: str, methods_program: Path, compiled_folder: Path, tmp_path: Path
) -> None:
    bundle, paths = compiled_folder / "llama.fuseconv", (tmp_path / "in.safetensors", tmp_path / "out.safetensors")
    decode = load(bundle / "methods/decode", target=target)
    inputs = {"input_ids": torch.tensor([[9], [11]]), "attention_mask": torch.ones(2, 1, dtype=torch.int64)}
    inputs |= decode.zero_state(batch=2)
    save_file(inputs, paths[0])
    done = subprocess.run([methods_program, bundle, target, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = {name: int(value) for name, value in (line.split() for line in done.stdout.splitlines())}
    artifacts = [bundle / "methods" / name / spec_of(target).artifact for name in ("prefill", "decode")]
    keys = [table.keys for artifact in artifacts if (table := Table.of(artifact)) is not None]
    assert told == {"mappings": 1, "addresses": len(set.union(*keys))}
    assert len(set.intersection(*keys)) > 5
    outputs = load_file(paths[1])
    for name, tensor in decode(**inputs)._asdict().items():
        torch.testing.assert_close(outputs[name], tensor, rtol=0, atol=0)


def damage_the_weights(bundle: Path) -> None:
    path = bundle / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")


def remove_the_weights(bundle: Path) -> None:
    (bundle / "weights.safetensors").unlink()


def edit_the_manifest(bundle: Path) -> None:
    path = bundle / "manifest.json"
    path.write_text(path.read_text().replace('"pad": 0', '"pad": 1'))


@pytest.mark.parametrize("damage", [damage_the_weights, remove_the_weights, edit_the_manifest])
def test_what_a_method_shares_is_checked_in_pythons_words(
    damage: Callable[[Path], None],
    run_in_cpp: Callable[..., tuple[int, str, Path]],
    generating_folder: Path,
    tmp_path: Path,
) -> None:
    bundle = shutil.copytree(generating_folder / "llama.fuseconv", tmp_path / "copy.fuseconv")
    damage(bundle)
    assert_same_refusal(run_in_cpp, bundle / "methods/decode", "torchscript")


def test_a_bundle_of_several_methods_needs_the_name_of_one(
    run_in_cpp: Callable[..., tuple[int, str, Path]], generating_folder: Path
) -> None:
    status, text, _ = run_in_cpp(generating_folder / "llama.fuseconv", {"x": torch.zeros(1)})
    assert status == 2
    assert "the bundle has the methods prefill, decode, and this needs one of them" in text
    assert "methods/prefill" in text
