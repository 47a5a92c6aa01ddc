"""`fuseconv swap`: a bundle with new weights is that of a new conversion; other weights are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.heads import Heads, archive
from support.shared import made_once
from torch import Tensor

import fuseconv
from fuseconv import cli
from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import check_replaceable, open_bundle, seal
from fuseconv.bundle.staging import staged
from fuseconv.errors import FileError, FuseconvError, ParityError, RefusedError, UnsupportedError, UsageError
from fuseconv.matching.steps import read_plan
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.swap import swap
from fuseconv.runtime.model import load
from fuseconv.sources.adapters import merged
from fuseconv.sources.new_weights import fitted

TARGETS = ("export", "onnx", "onnx-plugin", "torchscript")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the model with the seed 0."""

    def write(output: Path) -> None:
        model = archive(Heads(0), tmp_path_factory.mktemp("heads") / "model.pt2")
        convert(model, target=TARGETS, self_contained=["torchscript"], output=output)

    return made_once(tmp_path_factory, "heads.fuseconv", write)


@pytest.fixture(scope="module")
def narrow(heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bundle with the target export only."""
    folder = Path(shutil.copytree(heads, tmp_path_factory.mktemp("narrow") / "heads.fuseconv"))
    manifest = open_bundle(folder)
    for name in ("model.onnx", "model.plugin.onnx", MANIFEST):
        (folder / name).unlink()
    for name in ("torchscript", "onnx"):
        shutil.rmtree(folder / name, ignore_errors=True)
    seal(folder, manifest.model_copy(update={"targets": {"export": manifest.targets["export"]}}))
    return folder


def weights(seed: int, path: Path, change: Callable[[dict[str, Tensor]], object] = lambda state: None) -> Path:
    state = {name: tensor.detach().clone() for name, tensor in Heads(seed).state_dict().items()}
    change(state)
    save_file(state, path)
    return path


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def other(heads: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with the weights of seed 1 and an adapter, swapped from the command line."""

    def write(output: Path) -> None:
        scratch = tmp_path_factory.mktemp("other")
        folder = adapter(scratch / "adapter", query__lora_A=A, query__lora_B=B)
        path = weights(1, scratch / "w.safetensors")
        assert cli.main(["swap", str(heads), str(path), "--adapter", str(folder), "-o", str(output)]) == 0

    return made_once(tmp_path_factory, "other.fuseconv", write)


def test_a_swapped_bundle_computes_what_the_new_model_computes(heads: Path, other: Path, tmp_path: Path) -> None:
    assert any(use.name.startswith("merge-linear") for use in open_bundle(heads).rules)
    module, x = Heads(1), torch.randn(5, 5, 16)
    with torch.no_grad():
        module.query.weight += 3 * B @ A
        for target in TARGETS:
            torch.testing.assert_close(load(other, target)(x), module(x))
    before = hashes(other)
    back = swap(other, weights(0, tmp_path / "old.safetensors"), output=tmp_path / "back.fuseconv")
    assert back.report.ok
    assert (back.kept, back.written) == (("export",), ("onnx", "onnx-plugin", "torchscript"))
    assert hashes(other) == before
    assert any(step.trial for step in read_plan(heads / "plan.json").steps)
    assert not any(step.trial for step in read_plan(back.bundle / "plan.json").steps)
    for name in ("weights.safetensors", "export/model.pt2"):
        assert (back.bundle / name).read_bytes() == (heads / name).read_bytes()
    stock = torch.jit.load(str(back.bundle / "torchscript/model.pt"))
    torch.testing.assert_close(stock(x)[0], Heads(0)(x))


def _forget(table: Path) -> None:
    value = json.loads(table.read_text())
    del value["tensors"]["shift"]
    table.write_text(json.dumps(value))


OWN: Mapping[str, tuple[Callable[[Path], object], Callable[[dict[str, Tensor]], object]]] = {
    "a number in the program": (lambda bundle: None, lambda state: state["scale"].fill_(0.25)),
    "a weight in the artifact": (lambda bundle: _forget(bundle / "export/weights.json"), lambda state: None),
}


@pytest.mark.parametrize("what", OWN)
def test_an_artifact_that_contains_an_old_value_is_written_again(what: str, narrow: Path, tmp_path: Path) -> None:
    prepare, change = OWN[what]
    copy = Path(shutil.copytree(narrow, tmp_path / "copy.fuseconv"))
    prepare(copy)
    (copy / MANIFEST).unlink()
    seal(copy, open_bundle(narrow))
    new, x = weights(1, tmp_path / "w.safetensors", change), torch.randn(2, 5, 16)
    assert swap(copy, new).written == ("export",)
    module = Heads(1)
    module.load_state_dict(load_file(new))
    torch.testing.assert_close(load(copy)(x), module(x))


def _drop(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda state: state.pop(name)


def _put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda state: state.__setitem__(name, tensor)


REFUSED: Mapping[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "a missing weight": (_drop("key.bias"), "weights are missing: key.bias"),
    "a missing weight that is tied": (
        lambda state: (state.pop("down.weight"), state.pop("tied.weight")),
        "weights are missing: down.weight, tied.weight",
    ),
    "another name": (_put("other", torch.zeros(2)), "no weights with the names other"),
    "another shape": (_put("shift", torch.zeros(17)), r"shift is float32\[17\], but the model needs float32\[16\]"),
    "another rank": (_put("shift", torch.zeros(1, 16)), r"shift is float32\[1, 16\]"),
    "another dtype": (_put("shift", torch.zeros(16).half()), r"shift is float16\[16\]"),
    "another constant": (_put("mask", torch.ones(16)), "mask is a constant of the model, but its value differs"),
    "untied weights": (
        _put("tied.weight", torch.zeros(16, 32)),
        "are one tied weight in the model, but their values differ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_weights_are_refused(name: str, heads: Path, tmp_path: Path) -> None:
    change, message = REFUSED[name]
    with pytest.raises(RefusedError, match=message):
        swap(heads, weights(1, tmp_path / "w.safetensors", change), output=tmp_path / "new.fuseconv")
    assert not (tmp_path / "new.fuseconv").exists()


@pytest.mark.parametrize("kind", ["an exported program", "a TorchScript program"])
def test_a_model_in_place_of_its_weights_is_named(kind: str, heads: Path, tmp_path: Path) -> None:
    path, x = tmp_path / "model.pt", torch.randn(2, 5, 16)
    if kind == "an exported program":
        torch.export.save(torch.export.export(Heads(1), (x,)), path)
    else:
        torch.jit.trace(Heads(1), (x,)).save(path)
    with pytest.raises(UsageError, match=f"the file contains {kind}, and not a state dict") as refused:
        swap(heads, path, output=tmp_path / "new.fuseconv")
    assert "torch.save(model.state_dict()" in refused.value.fix


def test_tied_weights_may_be_left_out_and_all_may_have_a_prefix(tmp_path: Path) -> None:
    own = dict(Heads(2).state_dict())
    tied = {name: "down.weight" if name == "tied.weight" else name for name in own}
    given = {f"model.{name}": tensor for name, tensor in own.items() if name != "tied.weight"}
    found = fitted({**given, "head.weight": torch.zeros(3)}, own, tied, tmp_path)
    assert found.keys() == own.keys()
    assert all(torch.equal(found[name], own[name]) for name in own)
    halves = fitted(own, {name: tensor.half() for name, tensor in own.items()}, tied, tmp_path, torch.half)
    assert all(torch.equal(halves[name], own[name].half()) for name in own)


def test_a_target_that_differs_with_the_new_weights_is_an_error(narrow: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy.fuseconv"))
    program, manifest = copy / "export/model.pt2", open_bundle(copy)
    with zipfile.ZipFile(program) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(program, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"aten.tanh", b"aten.relu"))
    seal(copy, manifest)
    before = hashes(copy)
    with pytest.raises(ParityError, match="with the new weights, output output_0 of the target export differs"):
        swap(copy, weights(1, tmp_path / "w.safetensors"))
    assert hashes(copy) == before


def test_a_bundle_that_another_process_replaces_meanwhile_is_not_overwritten(narrow: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy.fuseconv"))
    replaced: list[bytes] = []

    def progress(step: str) -> nullcontext[None]:
        if step == "verify":
            seal(copy, open_bundle(copy).model_copy(update={"mismatch": True}))
            replaced.append((copy / MANIFEST).read_bytes())
        return nullcontext()

    with pytest.raises(FileError, match="another process has changed the bundle in the meantime"):
        swap(copy, weights(1, tmp_path / "w.safetensors"), progress=progress)
    assert replaced == [(copy / MANIFEST).read_bytes()]


@pytest.mark.parametrize("target", ["export", "torchscript", "onnx"])
def test_a_bundle_that_is_replaced_while_threads_load_it_is_wholly_old_or_new(
    target: str, heads: Path, other: Path, tmp_path: Path
) -> None:
    current, x = tmp_path / "current.fuseconv", torch.randn(2, 5, 16)
    expected = [load(bundle, target)(x) for bundle in (heads, other)]
    shutil.copytree(heads, current)
    seen, ended = Counter[int](), threading.Event()

    def read() -> None:
        while not ended.is_set():
            outputs = fuseconv.load(current, target)(x)
            seen[[torch.equal(outputs, one) for one in expected].index(True)] += 1

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        for bundle in [other, heads] * 3:
            with staged(current, check_replaceable) as staging:
                shutil.copytree(bundle, staging, dirs_exist_ok=True)
            time.sleep(0.4)
        ended.set()
        for one in readers:
            one.result()
    assert sum(seen.values()) > 0


def adapter(folder: Path, *, config: Mapping[str, object] = {}, **tensors: Tensor) -> Path:
    folder.mkdir()
    own = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps({**own, **config}))
    save_file(
        {f"base_model.model.{name.replace('__', '.')}.weight": tensor for name, tensor in tensors.items()},
        folder / "adapter_model.safetensors",
    )
    return folder


# From a seed: processes that run tests side by side share the bundle that is made from them.
A, B = (torch.randn(size, generator=torch.Generator().manual_seed(2)) for size in ((2, 16), (16, 2)))


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 3.0),
        ({"use_rslora": True}, 6 / 2**0.5),
        ({"alpha_pattern": {"query": 1}}, 0.5),
        ({"alpha_pattern": {"uery": 1}}, 3.0),
        ({"fan_in_fan_out": True}, 3.0),
    ],
)
def test_an_adapter_is_merged(config: Mapping[str, object], scale: float, tmp_path: Path) -> None:
    state = dict(Heads(1).state_dict())
    folder = adapter(tmp_path / "adapter", config=config, query__lora_A=A, query__lora_B=B, up=torch.zeros(32, 16))
    found = merged(state, folder)
    product = scale * B @ A
    expected = state["query.weight"] + (product.T if config.get("fan_in_fan_out") else product)
    torch.testing.assert_close(found["query.weight"], expected)
    assert not found["up.weight"].any()
    assert found["key.weight"] is state["key.weight"]


ODD_ADAPTERS: Mapping[str, tuple[dict[str, object], dict[str, Tensor], type[FuseconvError], str]] = {
    "another kind": ({"peft_type": "IA3"}, {}, UnsupportedError, "has the PEFT type IA3"),
    "dora": ({"use_dora": True}, {}, UnsupportedError, "use_dora"),
    "an activated adapter": ({"alora_invocation_tokens": [1]}, {}, UnsupportedError, "alora_invocation_tokens"),
    "another start": ({"init_lora_weights": "pissa_niter_4"}, {}, UnsupportedError, "changes the weights"),
    "biases": ({"bias": "all"}, {}, UnsupportedError, "changes biases"),
    "no such module": ({}, {"none__lora_A": A, "none__lora_B": B}, RefusedError, "no weight none.weight"),
    "one factor": ({}, {"query__lora_A": A}, RefusedError, "lacks the factor .*lora_B.weight"),
    "the other factor": ({}, {"query__lora_B": B}, RefusedError, "the other factor"),
    "two ranks": (
        {},
        {"query__lora_A": A, "query__lora_B": torch.ones(16, 3)},
        RefusedError,
        "different ranks, 2 and 3",
    ),
    "another shape": (
        {},
        {"up__lora_A": A, "up__lora_B": B},
        RefusedError,
        r"\[16, 16\], but the weight has the shape \[32, 16",
    ),
}


@pytest.mark.parametrize("name", ODD_ADAPTERS)
def test_odd_adapters_are_refused(name: str, tmp_path: Path) -> None:
    config, tensors, kind, message = ODD_ADAPTERS[name]
    folder = adapter(tmp_path / "adapter", config=config, **(tensors or {"query__lora_A": A, "query__lora_B": B}))
    with pytest.raises(kind, match=message):
        merged(dict(Heads(1).state_dict()), folder)


def test_each_call_is_wholly_old_or_new_while_weights_are_swapped(heads: Path, other: Path) -> None:
    x, model = torch.randn(16, 5, 16), load(heads, "torchscript")
    expected = [load(bundle, "torchscript")(x) for bundle in (heads, other)]
    assert not torch.allclose(*expected)
    ended: list[bool] = []

    def call(_: int) -> set[int]:
        seen = set()
        for turn in count():
            result = model(x)
            seen.add(next(at for at, one in enumerate(expected) if torch.equal(result, one)))
            if ended and turn > 5:
                return seen
        raise AssertionError

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(call, number) for number in range(8)]
        for turn in range(6):
            model.swap((other, heads)[turn % 2])
        model.swap(other)
        ended.append(True)
        assert set().union(*(one.result() for one in calls)) == {0, 1}
    assert torch.equal(model(x), expected[1])


def test_a_model_is_unchanged_by_a_bundle_that_does_not_fit(heads: Path, bundle: Path, tmp_path: Path) -> None:
    model, x = load(heads, "torchscript"), torch.randn(3, 5, 16)
    before = model(x)
    with pytest.raises(UsageError, match="another contract"):
        model.swap(bundle)
    with pytest.raises(UsageError, match="does not exist"):
        model.swap(tmp_path / "none")
    assert torch.equal(model(x), before)


def test_the_new_bundle_is_not_written_into_the_old(heads: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="inside of the bundle"):
        swap(heads, weights(1, tmp_path / "w.safetensors"), output=heads / "original" / "new")


def test_a_bundle_without_its_original_program_is_not_swapped(heads: Path, tmp_path: Path) -> None:
    old = Path(shutil.copytree(heads, tmp_path / "old.fuseconv"))
    manifest = open_bundle(old)
    shutil.rmtree(old / "original")
    (old / MANIFEST).unlink()
    seal(old, manifest)
    with pytest.raises(UnsupportedError, match="does not contain the original program"):
        swap(old, weights(1, tmp_path / "w.safetensors"))
