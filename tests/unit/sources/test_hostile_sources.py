"""Files that would run code, and files that are damaged or not models, are rejected, and nothing runs."""

import contextlib
import io
import json
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.saved_models import (
    SAVERS,
    Payload,
    Perceptron,
    Saved,
    edit_program,
    edit_zip,
    made,
    options_for,
    run,
)
from torch.export.pt2_archive import constants as archive_constants

from fuseconv.errors import (
    FileError,
    FuseconvError,
    RefusedError,
    UpstreamError,
    UsageError,
)
from fuseconv.sources import read
from fuseconv.sources.archive import load_exported

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.:FutureWarning"),  # torch warns of its own use
]


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("pickle"))


def save_evil_module(path: Path, proof: Path, **arguments: Any) -> None:
    module: Any = made(Perceptron)
    module.payload = Payload(proof)
    torch.save(module, path, **arguments)


def save_evil_state(path: Path, proof: Path, **arguments: Any) -> None:
    torch.save({**made(Perceptron).state_dict(), "payload": Payload(proof)}, path, **arguments)


PICKLES = {
    "module": save_evil_module,
    "old module": lambda path, proof: save_evil_module(path, proof, _use_new_zipfile_serialization=False),
    "state dict": save_evil_state,
    "old state dict": lambda path, proof: save_evil_state(path, proof, _use_new_zipfile_serialization=False),
    "protocol 4": lambda path, proof: save_evil_state(path, proof, pickle_protocol=4),
    "plain pickle": lambda path, proof: path.write_bytes(pickle.dumps(Payload(proof))),
    "plain pickle, protocol 5": lambda path, proof: path.write_bytes(pickle.dumps(Payload(proof), 5)),
}


@pytest.mark.parametrize("name", PICKLES)
def test_hostile_pickles_do_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logged: io.StringIO, name: str
) -> None:
    path, proof = tmp_path / "model.pt", tmp_path / "ran"
    PICKLES[name](path, proof)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    options = options_for(Perceptron, "state dict", trust=frozenset({"code", "torchscript", "native"}))
    with pytest.raises(RefusedError, match="mkdir") as caught:
        read(path, options=options)
    assert "--trust pickle" in caught.value.fix
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in logged.getvalue()
    assert not proof.exists()


def test_the_payload_is_live(tmp_path: Path) -> None:
    """The same file does run its payload when pickles are trusted: what the other tests refuse is real."""
    save_evil_module(tmp_path / "model.pt", tmp_path / "ran")
    read(tmp_path / "model.pt", options=options_for(Perceptron, "pickle"))
    assert (tmp_path / "ran").exists()


def evil_tensor_file(proof: Path, **arguments: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(((Payload(proof),), {}), buffer, **arguments)
    return buffer.getvalue()


def evil_expression(proof: Path) -> str:
    """Reaches os.mkdir from a tuple, through attributes alone, as sympy evaluates it."""
    classes = object.__subclasses__()  # object is the base of the tuple below
    index = next(i for i, c in enumerate(classes) if c.__module__ == "os" and c.__name__ == "_wrap_close")
    return f"().__class__.__base__.__subclasses__()[{index}].__init__.__globals__['mkdir']({str(proof)!r})"


def set_size(program: Any, text: str) -> None:
    expression = {"expr_str": text, "hint": {"as_int": 3}}
    program["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0] = {"as_expr": expression}


def use_pickle(members: dict[str, bytes], proof: Path) -> None:
    config = json.loads(members["data/weights/model_weights_config.json"])
    payload = next(iter(config["config"].values()))
    payload["use_pickle"] = True
    members["data/weights/model_weights_config.json"] = json.dumps(config).encode()
    members["data/weights/" + payload["path_name"]] = evil_tensor_file(proof)


def opaque_object(members: dict[str, bytes], proof: Path) -> None:
    config = {
        "config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True, "tensor_meta": None}}
    }
    members["data/constants/model_constants_config.json"] = json.dumps(config).encode()
    members["data/constants/opaque_obj_0"] = pickle.dumps(Payload(proof))


ARCHIVES = {
    "sample inputs": lambda proof: lambda m: m.update({"data/sample_inputs/model.pt": evil_tensor_file(proof)}),
    "sample inputs, old form": lambda proof: (
        lambda m: m.update(
            {"data/sample_inputs/model.pt": evil_tensor_file(proof, _use_new_zipfile_serialization=False)}
        )
    ),
    "legacy weights": lambda proof: lambda m: m.update({"data/weights/model.pt": evil_tensor_file(proof)}),
    "legacy constants": lambda proof: lambda m: m.update({"data/constants/model.pt": evil_tensor_file(proof)}),
    "pickled weight": lambda proof: lambda m: use_pickle(m, proof),
    "opaque object": lambda proof: lambda m: opaque_object(m, proof),
    "custom object": lambda proof: lambda m: m.update({"data/constants/custom_obj_0": pickle.dumps(Payload(proof))}),
    "symbolic size": lambda proof: edit_program(lambda program: set_size(program, evil_expression(proof))),
    "guard": lambda proof: edit_program(
        lambda program: program.update(guards_code=[f"__import__('os').mkdir({str(proof)!r}) is None"])
    ),
    "node target": lambda proof: edit_program(
        lambda program: program["graph_module"]["graph"]["nodes"][0].update(target="torch.os.mkdir")
    ),
    "compiled code": lambda proof: lambda m: m.update({"data/aotinductor/model/model.so": b"\x7fELF"}),
    "weight outside": lambda proof: (
        lambda m: m.update(
            {
                "data/weights/model_weights_config.json": m["data/weights/model_weights_config.json"].replace(
                    b'"weight_0"', b'"../../weight_0"'
                )
            }
        )
    ),
    "weights table is no table": lambda proof: lambda m: m.update({"data/weights/model_weights_config.json": b"[1]"}),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_hostile_archives_do_not_run(saved: Saved, tmp_path: Path, name: str) -> None:
    path, proof = tmp_path / "model.pt2", tmp_path / "ran"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, ARCHIVES[name](proof))
    with pytest.raises(RefusedError) as caught:
        read(path)
    assert str(path) in caught.value.where
    assert not proof.exists()


LIVE = ["sample inputs", "pickled weight", "symbolic size"]
if hasattr(archive_constants, "OPAQUE_OBJ_FILENAME_PREFIX"):  # torch 2.11 has no opaque objects yet
    LIVE.append("opaque object")


@pytest.mark.parametrize("name", LIVE)
def test_the_attacks_on_archives_are_live(saved: Saved, tmp_path: Path, name: str) -> None:
    """torch.export.load, without the screening, runs each of them."""
    path, proof = tmp_path / "model.pt2", tmp_path / "ran"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, ARCHIVES[name](proof))
    with contextlib.suppress(UpstreamError):  # what the payload leaves behind is no program
        load_exported(path, path)
    assert proof.exists()


def test_an_edited_but_sound_archive_is_read(saved: Saved, tmp_path: Path) -> None:
    """`edit_zip` itself breaks nothing: the refusals above are for what was put in."""
    path = tmp_path / "model.pt2"
    shutil.copy(saved[Perceptron, "pt2"], path)
    edit_zip(path, lambda members: members.update({"extra/note": b"hello"}))
    assert run(read(path))[0].shape[1] == 2


def elf(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + bytes(300))


def cut(form: str, at: float) -> Callable[[Path, Saved], None]:
    def write(path: Path, saved: Saved) -> None:
        data = saved[Perceptron, form].read_bytes()
        path.write_bytes(data[: int(len(data) * at)])

    return write


BAD_FILES: dict[str, tuple[Callable[[Path, Saved], object], type[FuseconvError]]] = {
    "missing": (lambda path, saved: None, FileError),
    "empty": (lambda path, saved: path.write_bytes(b""), RefusedError),
    "text": (lambda path, saved: path.write_text("hello"), RefusedError),
    "shared object": (lambda path, saved: elf(path), RefusedError),
    "zip of something else": (lambda path, saved: write_other_zip(path), UsageError),
    "empty folder": (lambda path, saved: path.mkdir(), UsageError),
    "bundle": (lambda path, saved: write_bundle(path), UsageError),
    "tar": (lambda path, saved: write_tar(path), RefusedError),
    "pt2, cut": (cut("pt2", 0.7), RefusedError),
    "pickle, cut": (cut("pickle", 0.7), RefusedError),
    "old state dict, cut": (cut("old state dict", 0.9), RefusedError),
    "old state dict, cut early": (cut("old state dict", 0.1), RefusedError),
    "state dict, cut": (cut("state dict", 0.9), RefusedError),
    "traced, cut": (cut("traced", 0.9), RefusedError),
    "safetensors, cut": (cut("safetensors", 0.9), RefusedError),
    "safetensors, header cut": (cut("safetensors", 0.05), RefusedError),
}


def write_other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/hello.txt", "hello")


def write_bundle(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text("{}")


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused(saved: Saved, tmp_path: Path, name: str) -> None:
    write, error = BAD_FILES[name]
    path = tmp_path / "model.pt"
    write(path, saved)
    with pytest.raises(error) as caught:
        read(path, options=options_for(Perceptron, "state dict"))
    assert str(path) in caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("form", ["pt2", "state dict", "pickle", "traced"])
def test_a_flipped_bit_in_the_weights_is_refused(saved: Saved, tmp_path: Path, form: str) -> None:
    path = tmp_path / "model.pt"
    data = bytearray(saved[Perceptron, form].read_bytes())
    weight = made(Perceptron).first.weight.detach().numpy().tobytes()
    data[data.index(weight)] ^= 1
    path.write_bytes(data)
    with pytest.raises(RefusedError, match="checksum"):
        read(path, options=options_for(Perceptron, form))


@pytest.mark.parametrize("form", ["traced", "scripted"])
@pytest.mark.parametrize("left", [0, 8, 31])
def test_a_tensor_with_less_data_than_it_declares_is_refused(form: str, left: int, tmp_path: Path) -> None:
    """torch.jit.load takes it, and the first that looks at the tensor reads past its end."""
    path = tmp_path / "model.pt"
    SAVERS[form](made(Perceptron), path)
    edit_zip(path, lambda members: members.update({"data/1": members["data/1"][:left]}))
    with pytest.raises(UpstreamError, match=f"record data/1 has {left} bytes, and its tensor needs 32"):
        read(path, options=options_for(Perceptron, form))
