"""Tensors for a contract: from files, random, and extreme."""

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fuseconv.contract.dims import Dim
from fuseconv.contract.input_text import parse_inputs, parse_ranges
from fuseconv.contract.inputs import (
    LARGEST,
    apply_ranges,
    contract_of,
    draw,
    example_sizes,
    from_file,
    sizes_to_try,
)
from fuseconv.contract.options import FLOATS, Options
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import Kind
from fuseconv.errors import ContractError, FileError, FuseconvError, RefusedError, UsageError

CONTRACT = Contract(parse_inputs(["ids=i64[batch:1..64,seq:2..512]", "x=f32[batch,4]"]), ())
TENSORS = {"ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "x": torch.randn(2, 4)}


def arrays(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def write_npz(path: Path, tensors: Mapping[str, Tensor]) -> None:
    np.savez(path, **arrays(tensors))


def write_npz_packed(path: Path, tensors: Mapping[str, Tensor]) -> None:
    np.savez_compressed(path, **arrays(tensors))


def write_npz_named_otherwise(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays(tensors))


WRITERS = {
    "a.safetensors": lambda path, tensors: save_file(tensors, path),
    "a.npz": write_npz,
    "packed.npz": write_npz_packed,
    "npz-named.dat": write_npz_named_otherwise,
    "a.pt": lambda path, tensors: torch.save(tensors, path),
    "old.pt": lambda path, tensors: torch.save(tensors, path, _use_new_zipfile_serialization=False),
    "tuple.pt": lambda path, tensors: torch.save(tuple(tensors.values()), path),
    "list.pt": lambda path, tensors: torch.save(list(tensors.values()), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_from_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    WRITERS[name](path, TENSORS)
    read = from_file(path, CONTRACT)
    assert list(read) == ["ids", "x"]
    assert all(torch.equal(read[key], TENSORS[key]) for key in TENSORS)


def test_from_file_without_contract(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a")
    assert contract_of(from_file(tmp_path / "a")) == (TensorSpec("ids", "i64", (2, 3)), TensorSpec("x", "f32", (2, 4)))
    torch.save(TENSORS["x"], tmp_path / "b")
    assert list(from_file(tmp_path / "b")) == ["input_0"]


class Boom:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("zipped", [True, False])
def test_from_file_runs_nothing(tmp_path: Path, zipped: bool) -> None:
    proof = tmp_path / "ran"
    torch.save({"ids": Boom(proof)}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    np.savez(tmp_path / "a.npz", ids=np.array([Boom(proof)], dtype=object))
    for name in ("a.pt", "a.npz"):
        with pytest.raises(RefusedError):
            from_file(tmp_path / name, CONTRACT)
    assert not proof.exists()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", RefusedError),
        (b"\x80\x02", RefusedError),
        (b"PK\x03\x04 nothing", RefusedError),
        (b"{}", RefusedError),
        (None, FileError),
    ],
)
def test_from_file_refuses_damage(tmp_path: Path, content: bytes | None, error: type[FuseconvError]) -> None:
    path = tmp_path / "inputs"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error) as caught:
        from_file(path, CONTRACT)
    assert str(path) in caught.value.where


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, torch.ones(2, 4)], "contains a list whose item 0 is an int"),
        ((torch.ones(2, dtype=torch.int64), None), "contains a tuple whose item 1 is None"),
        ([[torch.ones(2, dtype=torch.int64), torch.ones(2, 4)]], "contains a list whose item 0 is a list"),
        ({"ids": torch.ones(2, dtype=torch.int64), "x": [1.0]}, "contains a dict whose item 'x' is a list"),
        ("ids", "contains a str"),
    ],
)
@pytest.mark.parametrize("contract", [CONTRACT, None], ids=["contract", "no contract"])
def test_a_file_of_something_else_is_said_to_hold_it(
    tmp_path: Path, value: object, said: str, contract: Contract | None
) -> None:
    torch.save(value, tmp_path / "a.pt")
    with pytest.raises(RefusedError, match=said) as caught:
        from_file(tmp_path / "a.pt", contract)
    assert "or a list of the tensors" in caught.value.fix


def test_a_sequence_has_a_tensor_for_each_input_in_order(tmp_path: Path) -> None:
    torch.save(list(TENSORS.values()), tmp_path / "a.pt")
    assert list(from_file(tmp_path / "a.pt", CONTRACT)) == ["ids", "x"]
    torch.save((TENSORS["x"],), tmp_path / "a.pt")
    with pytest.raises(UsageError, match="contains a tuple of 1 tensor, but the model takes 2 inputs") as caught:
        from_file(tmp_path / "a.pt", CONTRACT)
    assert caught.value.fix.endswith("in this order: ids, x")


@pytest.mark.parametrize("packed", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_from_file_refuses_arrays_that_cannot_be_unpacked(tmp_path: Path, packed: int) -> None:
    path = tmp_path / "inputs.npz"
    np.save(tmp_path / "x.npy", np.arange(4096))
    with zipfile.ZipFile(path, "w", packed) as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    sound = path.read_bytes()
    assert torch.equal(from_file(path)["x"], torch.arange(4096))
    refused = 0
    for at in range(40, len(sound) - 100, len(sound) // 40):
        path.write_bytes(sound[:at] + b"\xff" * 9 + sound[at + 9 :])
        try:
            assert torch.equal(from_file(path)["x"], torch.arange(4096)), "damaged numbers"
        except RefusedError as error:
            assert "cannot be read as plain tensors" in error.what  # noqa: PT017 - damage where nothing is read does no harm
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("header", [b"{'descr': ", b"{'descr': '<f4', 'shape': (", b"(", b"\\", b"\x00" * 64, b"\xff"])
def test_from_file_refuses_an_array_whose_header_is_no_literal(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "inputs.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(RefusedError, match="cannot be read as plain tensors"):
        from_file(path, CONTRACT)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"ids": None}, UsageError, "the model takes ids, x"),
        ({"more": torch.ones(1)}, UsageError, "the model takes ids, x"),
        ({"x": torch.randn(2, 5)}, ContractError, "size 5 at axis 1"),
        ({"x": torch.randn(3, 4)}, ContractError, "batch=3"),
        ({"x": torch.randn(2, 4).double()}, ContractError, "dtype f64"),
        ({"x": torch.zeros(2, 4, dtype=torch.uint16)}, UsageError, "uint16"),
    ],
)
def test_from_file_checks_the_contract(
    tmp_path: Path, change: dict[str, Tensor | None], error: type[FuseconvError], said: str
) -> None:
    tensors = {name: tensor for name, tensor in {**TENSORS, **change}.items() if tensor is not None}
    torch.save(tensors, tmp_path / "a")
    with pytest.raises(error) as caught:
        from_file(tmp_path / "a", CONTRACT)
    assert said in caught.value.what


@pytest.mark.parametrize(
    ("short", "names"),
    {
        "f64": ("f64", "float64", "fp64", "double"),
        "f32": ("f32", "float32", "fp32", "float", "torch.float32"),
        "f16": ("f16", "float16", "fp16", "half"),
        "bf16": ("bf16", "bfloat16", "torch.bfloat16"),
        "i64": ("i64", "int64", "long"),
        "i32": ("i32", "int32", "int"),
        "i16": ("i16", "int16", "short"),
        "i8": ("i8", "int8"),
        "u8": ("u8", "uint8"),
        "bool": ("bool",),
    }.items(),
)
def test_a_dtype_has_its_usual_names(short: str, names: tuple[str, ...]) -> None:
    for name in names:
        (spec,) = parse_inputs([f"x={name}[2]"])
        assert spec.dtype == short
        if short in FLOATS:
            assert Options(dtype=name).dtype == short


def test_parse_ranges() -> None:
    assert parse_ranges(["ids=0..30521", "x=-1.5..2e3", "y = 0.5..1"]) == {
        "ids": (0, 30521),
        "x": (-1.5, 2000),
        "y": (0.5, 1),
    }


@pytest.mark.parametrize("text", ["ids", "ids=", "ids=1", "ids=1..", "ids=..1", "ids=a..b", "ids=5..1", "ids=0..inf"])
def test_parse_ranges_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="range") as caught:
        parse_ranges([text])
    assert "--input-range" in caught.value.where


def test_ranges_bound_the_draw() -> None:
    specs = apply_ranges(CONTRACT.inputs, {"ids": (10, 12), "x": (-2, -1)})
    ids, x = draw(Contract(specs, ()), {"batch": 50, "seq": 9}, seed=3)
    assert set(ids.unique().tolist()) == {10, 11, 12}
    assert x.min() >= -2
    assert x.max() <= -1
    with pytest.raises(UsageError, match="no input y"):
        apply_ranges(CONTRACT.inputs, {"y": (0, 1)})


ALL_DTYPES = ["f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool", "c64", "c128"]


@pytest.mark.parametrize("kind", ["random", "zeros and large"])
@pytest.mark.parametrize("shape", [(), (1,), (4, 0), (5, 3, 2)])
def test_draw_fits_the_contract(kind: Kind, shape: tuple[int, ...]) -> None:
    contract = Contract(tuple(TensorSpec(f"x_{dtype}", dtype, shape) for dtype in ALL_DTYPES), ())
    tensors = draw(contract, {}, seed=1, kind=kind)
    assert contract.bind(tensors, {}) == tensors
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors)
    again = draw(contract, {}, seed=1, kind=kind)
    assert all(torch.equal(a, b) for a, b in zip(tensors, again, strict=True))


def test_draws_differ_by_seed() -> None:
    first, second = (draw(CONTRACT, {"batch": 8, "seq": 8}, seed=seed) for seed in (1, 2))
    assert not torch.equal(first[1], second[1])


def test_zeros_and_large() -> None:
    ids, x = draw(CONTRACT, {"batch": 6, "seq": 4}, seed=0, kind="zeros and large")
    assert ids[::2].eq(0).all()
    assert ids[1::2].eq(1).all()
    assert x[::2].eq(0).all()
    assert x[1::2].abs().max() > 10


@pytest.mark.parametrize("kind", ["random", "zeros and large"])
def test_masks_are_padding(kind: Kind) -> None:
    contract = Contract((TensorSpec("attention_mask", "i64", (50, 7), 0, 1),), ())
    (mask,) = draw(contract, {}, seed=0, kind=kind)
    assert mask[:, 0].eq(1).all()
    assert (mask.diff(dim=1) <= 0).all()
    assert mask.eq(0).any()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["ids=i64[batch:1..64,seq:2..512]"], {"batch": 3, "seq": 5}),
        (["x=f32[batch:1..64,3,5]"], {"batch": 7}),
        (["x=f32[batch:1..2,n:40..50]"], {"batch": 2, "n": 40}),
        (["x=f32[batch:1..1]"], {"batch": 1}),
        (["x=f32[a:2..4,b:2..4,c:2..4]"], {"a": 3, "b": 2, "c": 4}),
        (["x=f32[a:8..64:8,b:8..64:8]"], {"a": 24, "b": 40}),
        (["x=f32[a:8..16:8]"], {"a": 16}),
        (["x=f32[a:800..1600:80]"], {"a": 880}),
    ],
)
def test_example_sizes(texts: list[str], expected: dict[str, int]) -> None:
    assert example_sizes(Contract(parse_inputs(texts), ())) == expected


def test_sizes_to_try() -> None:
    cases = sizes_to_try(CONTRACT, seed=0)
    assert cases["smallest"] == {"batch": 1, "seq": 2}
    assert cases["largest batch"] == {"batch": 64, "seq": 5}
    assert cases["largest seq"] == {"batch": 3, "seq": 512}
    assert CONTRACT.bind(draw(CONTRACT, cases["random"], seed=0), {})
    assert sizes_to_try(Contract((TensorSpec("x", "f32", (2,)),), ()), seed=0) == {"static": {}}


def test_multiples_are_tried() -> None:
    contract = Contract(parse_inputs(["x=f32[a:48..4800:48,b:1..9]"]), ())
    cases = [case for seed in range(5) for case in sizes_to_try(contract, seed=seed).items()]
    assert {sizes["a"] % 48 for _, sizes in cases} == {0}
    assert len({sizes["a"] for name, sizes in cases if name == "random"}) > 1
    assert dict(cases)["smallest"]["a"] == 48
    assert dict(cases)["largest a"]["a"] == LARGEST // 48 * 48
    assert all(contract.bind(draw(contract, sizes, seed=0), {}) for _, sizes in cases)


def test_largest_sizes_are_bounded() -> None:
    contract = Contract((TensorSpec("x", "f32", (Dim("n", 1, 10**9), Dim("m", 5000, 10**9))),), ())
    cases = sizes_to_try(contract, seed=0)
    assert cases["largest n"]["n"] == LARGEST
    assert cases["largest m"]["m"] == 5000
    assert all(sizes["m"] <= 5064 for sizes in cases.values())
