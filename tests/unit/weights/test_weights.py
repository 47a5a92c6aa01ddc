"""The store of a bundle's weights: files of tensors, tables, and artifacts that refer to them."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import RefusedError, UsageError
from fuseconv.pipeline.materialize import materialize
from fuseconv.runtime.model import load
from fuseconv.targets import onnx_weights
from fuseconv.targets.aoti import _unpack
from fuseconv.targets.artifact import release
from fuseconv.weights.store import Store
from fuseconv.weights.table import STORE, TABLE, Table, set_table, sharing_weights
from fuseconv.weights.tensor_file import ALIGNMENT, DTYPES, mapped, write

TENSORS = {
    "a scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "odd": torch.arange(7, dtype=torch.int8),
    "many": torch.randn(16, 8),
    **{str(dtype): torch.arange(24, dtype=torch.uint8).view(4, 6).to(dtype) for dtype in DTYPES},
}


def test_a_file_of_tensors_is_one_of_safetensors_and_is_mapped(tmp_path: Path) -> None:
    places = write(tmp_path / "w.safetensors", TENSORS)
    for read in (mapped(tmp_path / "w.safetensors"), load_file(tmp_path / "w.safetensors")):
        assert read.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert read[name].dtype == tensor.dtype
            assert read[name].shape == tensor.shape
            assert torch.equal(read[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8)), name
    assert places["many"].offset % ALIGNMENT == 0
    kept = mapped(tmp_path / "w.safetensors")
    maps = Path("/proc/self/maps").read_text().splitlines()
    addresses = [tuple(int(end, 16) for end in line.split()[0].split("-")) for line in maps if "w.safetensors" in line]
    assert any(first <= kept["many"].data_ptr() < last for first, last in addresses)
    kept["many"][0] = 0  # the process's own copy of the page
    assert torch.equal(mapped(tmp_path / "w.safetensors")["many"], TENSORS["many"])


def test_a_file_without_tensors_is_mapped(tmp_path: Path) -> None:
    write(tmp_path / "w.safetensors", {})
    assert mapped(tmp_path / "w.safetensors") == {}


HEADERS: dict[str, object] = {
    "a dtype that does not exist": {"x": {"dtype": "F1", "shape": [1], "data_offsets": [0, 4]}},
    "an end past the end": {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}},
    "a negative size": {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [4, 0]}},
    "a size that is no number": {"x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}},
    "another size than its shape": {"x": {"dtype": "F32", "shape": [1, 1, 2], "data_offsets": [0, 4]}},
    "no offsets": {"x": {"dtype": "F32", "shape": [1]}},
    "a list": [],
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_damaged_header_is_refused(header: str, tmp_path: Path) -> None:
    text = json.dumps(HEADERS[header]).encode()
    text += b" " * (-len(text) % 8)
    (tmp_path / "w").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(RefusedError, match="the file of weights is damaged"):
        mapped(tmp_path / "w")


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\xff" * 16, struct.pack("<Q", 9) + b"{}"])
def test_a_file_without_a_header_is_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(data)
    with pytest.raises(RefusedError, match="the file of weights is damaged"):
        mapped(tmp_path / "w")


def test_each_tensor_is_stored_once_and_read_as_it_was(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    given = {
        "first": base,
        "tied": base.view(4, 6),
        "transposed": torch.randn(5, 7).T,
        "expanded": torch.randn(1, 3).expand(2, 3),
        "complex": torch.randn(3, 2, dtype=torch.complex128),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "empty": torch.empty(0),
    }
    store = Store.create(tmp_path, given)
    assert "tied" not in mapped(tmp_path / STORE)
    set_table(tmp_path / "target" / "artifact", store.put("target", given))
    table = Table.of(tmp_path / "target" / "artifact")
    assert table is not None
    assert table.files == (STORE,)
    for name, tensor in table.read(tmp_path, "cpu").items():
        assert torch.equal(tensor, given[name])
        assert tensor.stride() == given[name].resolve_conj().stride()


def test_artifacts_that_are_loaded_together_share_their_memory_on_a_device(tmp_path: Path) -> None:
    """The device meta stands for a GPU: tensors are copied to it."""
    given = {"weight": torch.randn(4, 6), "transposed": torch.randn(5, 7).T}
    table = Store.create(tmp_path, given).put("target", given)

    def storages() -> list[int]:
        read.append(table.read(tmp_path, "meta"))
        assert [one.stride() for one in read[-1].values()] == [one.stride() for one in given.values()]
        return [one.untyped_storage()._cdata for one in read[-1].values()]

    read: list[dict[str, torch.Tensor]] = []
    with sharing_weights():
        first = storages()
        assert storages() == first
        release(read[0].values())
        assert storages() == first
        assert [one.shape for one in read[1].values()] == [one.shape for one in given.values()]
    assert not set(storages()) & set(storages())


def test_what_only_one_target_has_is_in_its_folder(tmp_path: Path) -> None:
    shared, own = torch.randn(8, 8), torch.randn(8)
    store = Store.create(tmp_path, {"shared": shared, "other": torch.zeros(3)})
    table = store.put("aoti", {"shared": shared.clone(), "own": own, "other": torch.ones(3)})
    assert table.files == (STORE, f"aoti/{STORE}")
    assert {name: entry.key for name, entry in table.tensors.items()} == {
        "shared": "shared",
        "own": "aoti/own",
        "other": "aoti/other",
    }
    read = table.read(tmp_path, "cpu")
    assert torch.equal(read["own"], own)
    assert torch.equal(read["other"], torch.ones(3))
    elsewhere = tmp_path / "elsewhere"
    moved = Store.create(elsewhere, {"shared": torch.zeros(8, 8), "other": torch.zeros(3)})
    adopted = moved.adopt("aoti", table, tmp_path).read(elsewhere, "cpu")
    assert all(torch.equal(adopted[name], tensor) for name, tensor in read.items())


def test_an_onnx_model_that_contains_its_weights_is_moved_as_it_is(tmp_path: Path) -> None:
    tensor = onnx.numpy_helper.from_array(torch.zeros(99).numpy(), "w")
    graph = onnx.helper.make_graph([], "g", [], [], [tensor])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0)
    before = (tmp_path / "model.onnx").read_bytes()
    onnx_weights.move(tmp_path / "model.onnx", Store.create(tmp_path, {"w": torch.ones(99)}), tmp_path)
    assert (tmp_path / "model.onnx").read_bytes() == before


TABLES: dict[str, str] = {
    "no JSON": "{",
    "no files": "{}",
    "a file outside": json.dumps({"files": ["../w"], "tensors": {}}),
    "an absolute file": json.dumps({"files": ["/w"], "tensors": {}}),
    "a file that does not exist": json.dumps({"files": ["w"], "tensors": {}}),
    "an unknown key": json.dumps({"files": [STORE], "tensors": {"x": {"key": "none"}}}),
    "a view past the end": json.dumps(
        {"files": [STORE], "tensors": {"x": {"key": "x", "shape": [9], "stride": [1 << 40]}}}
    ),
}


@pytest.mark.parametrize("text", TABLES)
def test_a_damaged_table_is_refused(text: str, tmp_path: Path) -> None:
    Store.create(tmp_path, {"x": torch.zeros(4)})
    artifact = tmp_path / "target" / "artifact"
    artifact.parent.mkdir()
    artifact.with_name(TABLE).write_text(TABLES[text])
    with pytest.raises(RefusedError):
        _read(artifact, tmp_path)


def _read(artifact: Path, bundle: Path) -> None:
    table = Table.of(artifact)
    assert table is not None
    table.read(bundle, "cpu")


STOCK: dict[str, Callable[[Path], Callable[..., object]]] = {
    "torchscript": lambda path: torch.jit.load(str(path)),
    "export": lambda path: torch.export.load(str(path)).module(),
}


@pytest.mark.parametrize("target", STOCK)
def test_a_materialized_target_needs_no_store(target: str, bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / {"torchscript": "model.pt", "export": "model.pt2"}[target]
    assert cli.main(["materialize", str(bundle), "--target", target, "-o", str(output)]) == 0
    inputs = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.rand(2, 3) > 0.5
    with torch.no_grad():
        results = STOCK[target](output)(*inputs)
    assert isinstance(results, tuple | list)
    for result, expected in zip(results, load(bundle, target)(*inputs), strict=True):
        assert torch.equal(result, expected)
    assert [path.name for path in tmp_path.iterdir()] == [output.name]
    assert output.stat().st_size > (bundle / open_bundle(bundle).targets[target]).stat().st_size


class SeesNothing(TorchDispatchMode):
    """Stands for a mode in which torch traces another model."""

    def __torch_dispatch__(self, func: object, *_: object, **__: object) -> None:
        raise AssertionError(f"{func} was seen")


@pytest.mark.parametrize("mode", [contextlib.nullcontext, SeesNothing])
@pytest.mark.parametrize("target", ["aoti", "export", "torchscript"])
def test_the_weights_are_unmapped_with_the_model(
    target: str, mode: Callable[[], contextlib.AbstractContextManager[object]], bundle: Path
) -> None:
    gc.disable()  # garbage of other tests, which may have mapped the weights too, stays until the end
    try:
        store, before = str(bundle / STORE), Path("/proc/self/maps").read_text().count(str(bundle / STORE))
        model = load(bundle, target)
        assert Path("/proc/self/maps").read_text().count(store) > before
        with mode():
            del model  # without a collection of garbage
        assert Path("/proc/self/maps").read_text().count(store) == before
    finally:
        gc.enable()


def test_packages_that_replace_each_other_are_unpacked_to_different_folders(tmp_path: Path) -> None:
    package, folders = tmp_path / "model.pt2", set()
    for code in ("one", "two"):
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("model/data/kernel.so", code)
        _unpack(package)
        (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
        assert (folder / "data/kernel.so").read_text() == code
        folders.add(folder.name)
        shutil.rmtree(folder)
    assert len(folders) == 2


def test_a_package_cannot_be_materialized_and_no_bundle_is_written_into(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="aoti of a bundle cannot be written"):
        materialize(bundle, "aoti", tmp_path / "model.pt2")
    with pytest.raises(UsageError, match="inside of the bundle"):
        materialize(bundle, "torchscript", bundle / "torchscript/model.pt")


def test_an_artifact_without_its_weights_gives_nan(bundle: Path) -> None:
    inputs = torch.randn(2, 3, 8), torch.randn(2, 3, 8), torch.rand(2, 3) > 0.5
    module = torch.jit.load(str(bundle / "torchscript/model.pt"))
    assert module(*inputs)[1].isnan().all()
