"""Models of other tools are recognized by their content, and the error says how each gets to fuseconv."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from fuseconv.errors import RefusedError, UnsupportedError, UsageError
from fuseconv.sources import Options, read, sniff

Writer = Callable[[Path], object]


def onnx_model(path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    model = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y]))
    model.producer_name, model.doc_string = "a tool", "what it is for"
    path.write_bytes(model.SerializeToString())


def keras(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")


def saved_model(path: Path) -> None:
    path.mkdir()
    (path / "saved_model.pb").write_bytes(b"\x08\x01\x12\x02\x0a\x00")


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, weight=np.zeros(2), bias=np.zeros(2))


FORMATS: dict[str, tuple[Writer, str, str]] = {
    "onnx": (onnx_model, "an ONNX model", "torch.export.save("),
    "keras": (keras, "a Keras model", "KERAS_BACKEND=torch"),
    "hdf5": (lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)), "an HDF5 file", "KERAS_BACKEND=torch"),
    "saved model": (saved_model, "a TensorFlow SavedModel", "KERAS_BACKEND=torch"),
    "tflite": (lambda path: path.write_bytes(b"\x1c\0\0\0TFL3" + bytes(100)), "a TFLite model", "compiled"),
    "gguf": (lambda path: path.write_bytes(b"GGUF\x03\0\0\0" + bytes(100)), "a GGUF file", "gguf_file="),
    "flax": (lambda path: path.write_bytes(b"\x81\xa6params\x81\xa5Dense\xc7\x02\x01ab"), "msgpack", "from_flax=True"),
    "flax, many keys": (
        lambda path: path.write_bytes(b"\xde\0\x20\xa4bert\x81\xa1x\x80"),
        "msgpack",
        "load_state_dict",
    ),
    "npz": (npz, "an archive of NumPy arrays", "load_state_dict"),
}


def test_python_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n")
    with pytest.raises(UnsupportedError, match="this is a Python file") as caught:
        sniff(tmp_path / "model.py")
    assert "--model file.py:CLASS" in caught.value.fix


@pytest.mark.parametrize("suffix", ["", ".pt", ".safetensors"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_of_another_tool_is_named(name: str, suffix: str, tmp_path: Path) -> None:
    write, said, way = FORMATS[name]
    path = tmp_path / f"model{suffix}"
    write(path)
    with pytest.raises(UnsupportedError) as caught:
        sniff(path)
    assert said in caught.value.what
    assert way in caught.value.fix
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    "data",
    [
        b"\x08",  # a field without a value
        b"\x08\x08\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # a length that never ends
        b"\x08\x00\x3a\x00",  # version 0
        b"\x08\x01\x12\x02\x0a\x00",  # the message of a SavedModel
        b"\x3a\x02\x0a\x00",  # a graph without a version
        b"\x81\x01\x80",  # a map from a number
        b"\x81\xa6params\x05",  # a map to a number
        b"\xdf",
        b"TFL3",
        b"\x89HDF",
        bytes(range(256)),
    ],
    ids=repr,
)
def test_other_bytes_are_not_named(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(data)
    with pytest.raises(RefusedError, match="not a model that fuseconv can read"):
        sniff(tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning")  # torch warns of its own use
def test_the_onnx_of_torch_is_named(tmp_path: Path) -> None:
    program = torch.onnx.export(torch.nn.Linear(2, 2).eval(), (torch.ones(1, 2),), dynamo=True, verbose=False)
    assert program is not None
    program.save(tmp_path / "model.onnx")
    assert onnx.load(tmp_path / "model.onnx").graph.node
    with pytest.raises(UnsupportedError, match="an ONNX model"):
        sniff(tmp_path / "model.onnx")


# ---- weights without a module ----


STATE = torch.nn.Linear(2, 2).state_dict()
CHECKPOINT = {"epoch": 3, "model": STATE, "optimizer": {"state": {0: {"step": torch.ones(1)}}, "param_groups": []}}


def with_config(path: Path) -> None:
    save_file(STATE, path)
    (path.parent / "config.json").write_text("{}")


WEIGHTS: dict[str, tuple[Writer, str, str]] = {
    "state dict": (lambda path: torch.save(STATE, path), "2 tensors but no module", "--model"),
    "safetensors": (lambda path: save_file(STATE, path), "2 tensors but no module", "--model"),
    "safetensors of a folder": (with_config, "2 tensors but no module", "convert its folder"),
    "checkpoint": (lambda path: torch.save(CHECKPOINT, path), "checkpoint (epoch, model, optimizer)", "--model"),
    "two models": (
        lambda path: torch.save({"model": STATE, "ema": STATE}, path),
        "with the state dicts model, ema",
        "torch.load('weights')['model']",
    ),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_without_a_module(name: str, tmp_path: Path) -> None:
    write, said, way = WEIGHTS[name]
    write(tmp_path / "weights")
    with pytest.raises((UsageError, RefusedError)) as caught:
        read(tmp_path / "weights")
    assert said in caught.value.what
    assert way in caught.value.fix


@pytest.mark.parametrize("more", [{}, {"hyper_parameters": {"seed": 1}}], ids=["plain", "more keys"])
def test_a_checkpoint_that_runs_code_is_named(more: dict[str, object], tmp_path: Path) -> None:
    torch.save({"state_dict": STATE, "callbacks": Path("x"), **more}, tmp_path / "weights.ckpt")
    with pytest.raises(RefusedError, match="training checkpoint with a state_dict runs code") as caught:
        read(tmp_path / "weights.ckpt")
    assert "--trust pickle and --model" in caught.value.fix


def test_a_pickled_module_is_no_checkpoint(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    vars(module)["model"] = "state_dict"
    torch.save(module, tmp_path / "module.pt")
    with pytest.raises(RefusedError, match="the pickle runs code") as caught:
        read(tmp_path / "module.pt")
    assert caught.value.fix.endswith("add --trust pickle")


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod."])
def test_a_prefix_of_a_training_framework_is_named(prefix: str, tmp_path: Path) -> None:
    torch.save({prefix + name: tensor for name, tensor in STATE.items()}, tmp_path / "weights.pt")
    (tmp_path / "factory.py").write_text("import torch\ndef build(): return torch.nn.Linear(2, 2)\n")
    options = Options(model=f"{tmp_path}/factory.py:build", trust=frozenset({"code"}))
    with pytest.raises(RefusedError, match="does not fit") as caught:
        read(tmp_path / "weights.pt", options=options)
    assert f"removeprefix({prefix!r})" in caught.value.fix
