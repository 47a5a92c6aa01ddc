"""Models for Triton: what the configuration says of a contract, which files there are, and that other folders stay.

tests/tritonserver starts a server on them, and parses every configuration as Triton does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from support.served import with_buckets

from fuseconv import cli
from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.contract.buckets import Buckets
from fuseconv.contract.dims import Dim
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import ContractError, FuseconvError, UnsupportedError, UsageError
from fuseconv.parity.reference import read_reference
from fuseconv.serving.engine import Described
from fuseconv.serving.requests import check_call
from fuseconv.tritonserver.config import batching, tensors
from fuseconv.tritonserver.repository import BACKENDS, Backend, write_repository
from fuseconv.tritonserver.text import Enum, spell

BATCH, ROWS = Dim("batch", 1, 64), TensorSpec("x", "f32", (Dim("batch", 1, 64), 8))


def test_text_is_that_of_protocol_buffers() -> None:
    message = {"name": 'a "b"\n', "sizes": [1, -1], "kind": Enum("KIND_CPU"), "inner": [{"key": "ä"}, {}], "none": []}
    lines = [
        'name: "a \\"b\\"\\n"',
        "sizes: 1",
        "sizes: -1",
        "kind: KIND_CPU",
        "inner {",
        '  key: "ä"',
        "}",
        "inner {",
        "}",
    ]
    assert spell(message).splitlines() == lines


def contract(*inputs: TensorSpec, sizes: tuple[int, ...] = (1, 8), outputs: tuple[str, ...] = ("y",)) -> Contract:
    return Contract(inputs, ("y",), buckets=Buckets("batch", sizes, outputs) if sizes else None)


Y = Described("y", "FP32", (-1, 4))
BATCHINGS: dict[str, tuple[Contract, Described, int, str]] = {
    "rows everywhere": (contract(ROWS), Y, 64, ""),
    "rows without an end": (contract(TensorSpec("x", "f32", (Dim("batch", 1, 2**63 - 1), 8))), Y, 8, ""),
    "no buckets": (contract(ROWS, sizes=()), Y, 0, "convert with --bucket"),
    "an input without rows": (contract(ROWS, TensorSpec("scale", "f32", (8,))), Y, 0, "scale has no rows of batch"),
    "an output without rows": (contract(ROWS, outputs=()), Y, 0, "y has no rows of batch"),
    "an input of rows alone": (contract(TensorSpec("x", "f32", (BATCH,))), Y, 0, "x has only the axis batch"),
    "an output of rows alone": (contract(ROWS), Described("y", "FP32", (-1,)), 0, "y has only the axis batch"),
}


@pytest.mark.parametrize("case", BATCHINGS)
def test_requests_are_batched_where_triton_and_the_bundle_allow_it(case: str) -> None:
    given, output, limit, reason = BATCHINGS[case]
    how = batching(given, *tensors(given, [output]))
    assert how.limit == limit
    assert reason in how.reason
    assert bool(how.reason) == (limit == 0)


def test_triton_has_no_scalars() -> None:
    for given, output in ((contract(TensorSpec("x", "f32", ())), Y), (contract(ROWS), Described("y", "FP32", ()))):
        with pytest.raises(UnsupportedError, match="is a scalar"):
            tensors(given, [output])


def test_a_bundle_is_written_and_written_again(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block, repository = with_buckets(bundle, tmp_path / "block.fuseconv"), tmp_path / "models"
    words = ["triton", str(block), "-o", str(repository), "--target", "torchscript", "--instances", "2", "--json"]
    assert cli.main(words) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    assert (result["name"], result["target"], result["max_batch_size"]) == ("block", "torchscript", 0)
    assert "output_2 has only the axis batch" in result["not_batched"]
    text = (repository / "block" / "config.pbtxt").read_text()
    assert 'name: "keep"\n  data_type: TYPE_BOOL\n  dims: -1\n  dims: -1\n' in text
    assert "count: 2\n  kind: KIND_CPU" in text
    reference = read_reference(block / "reference.safetensors", open_bundle(block).contract)[0]
    for spec, tensor in zip(open_bundle(block).contract.inputs, reference.case.inputs, strict=True):
        assert (repository / "block" / "warmup" / spec.name).read_bytes() == tensor.numpy().tobytes()
    assert open_bundle(repository / "block" / "1" / "bundle") == open_bundle(block)

    (repository / "block" / "more").touch()
    assert cli.main(words) == 0  # again
    assert not (repository / "block" / "more").exists()
    assert [path.name for path in repository.iterdir()] == ["block"]


def test_an_onnx_model_is_complete(bundle: Path, tmp_path: Path) -> None:
    for target, libraries in (("onnx", 0), ("onnx-plugin", 1)):
        made = write_repository(bundle, tmp_path, target, backend="onnxruntime", target=target)
        options = onnxruntime.SessionOptions()
        text = (made.model / "config.pbtxt").read_text()
        paths = [line.split('"')[1] for line in text.splitlines() if "op_library_filename" in line]
        assert len(paths) == libraries
        for path in paths:
            options.register_custom_ops_library(path)
        session = onnxruntime.InferenceSession(str(made.model / "1" / "model.onnx"), options)
        manifest = open_bundle(bundle)
        reference = read_reference(bundle / "reference.safetensors", manifest.contract)[0]
        names = manifest.contract.names
        found = session.run(None, {n: t.numpy() for n, t in zip(names, reference.case.inputs, strict=True)})
        for one, expected in zip(found, reference.original, strict=True):
            np.testing.assert_allclose(one, expected.numpy(), rtol=1e-4, atol=1e-4)


def test_a_torchscript_model_has_its_weights(bundle: Path, tmp_path: Path) -> None:
    made = write_repository(bundle, tmp_path, "block", backend="pytorch", served_at=Path("/models"))
    assert made.preload == ("/models/block/1/libfuseconv_cpu.so",)
    reference = read_reference(bundle / "reference.safetensors", open_bundle(bundle).contract)[0]
    found = torch.jit.load(str(made.model / "1" / "model.pt"))(*reference.case.inputs)
    for one, expected in zip(found, reference.original, strict=True):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-4)
    text = (made.model / "config.pbtxt").read_text()
    assert all(f'name: "{name}"' in text for name in ("x__0", "skip__1", "keep__2", "output_0__0", "output_3__3"))
    assert sorted(path.name for path in (made.model / "warmup").iterdir()) == ["keep__2", "skip__1", "x__0"]


def foreign(folder: Path) -> Path:
    (folder / "block").mkdir(parents=True)
    (folder / "block" / "config.pbtxt").write_text('name: "block"\n')
    return folder


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a name that no URL has": ({"name": "a b"}, "cannot be the name of a model"),
    "a target that the backend does not run": (
        {"backend": "pytorch", "target": "onnx"},
        "does not run the target onnx",
    ),
    "a model of others": ({"output": foreign}, "is not a model that fuseconv wrote"),
    "a place in the bundle": ({"output": lambda folder: folder / "copy.fuseconv" / "x"}, "inside of the bundle"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_written_is_refused(case: str, bundle_copy: Path, tmp_path: Path) -> None:
    given, said = REFUSED[case]
    output = given.get("output", lambda folder: folder / "models")(tmp_path)
    backend: Backend = given.get("backend", "python")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FuseconvError, match=said):
        write_repository(bundle_copy, output, given.get("name", "block"), backend=backend, target=given.get("target"))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_target_that_the_bundle_lacks_is_an_error(bundle_copy: Path, tmp_path: Path) -> None:
    manifest = open_bundle(bundle_copy)
    targets = {name: path for name, path in manifest.targets.items() if name == "export"}
    seal(bundle_copy, manifest.model_copy(update={"targets": targets}))
    for backend in BACKENDS[1:]:
        with pytest.raises(UsageError, match="the bundle has no target"):
            write_repository(bundle_copy, tmp_path / "models", "block", backend=backend)


def test_a_call_outside_of_the_contract_is_refused() -> None:
    ids = replace(ROWS, name="ids", dtype="i64", low=0, high=9)
    for array, said in ((np.zeros((65, 8), np.int64), "size 65"), (np.full((1, 8), 10), "the value 10, outside 0..9")):
        with pytest.raises(ContractError, match=said):
            check_call([array], contract(ids))
    check_call([np.full((1, 8), 9)], contract(ids))
