"""The protocol: bodies that are read, bodies that are refused, and responses, without a socket and without torch."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import orjson
import pytest

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError, FuseconvError
from fuseconv.serving import messages
from fuseconv.serving.datatypes import ARRAYS, DATATYPES
from fuseconv.serving.refusals import NotFiniteError, RequestError, TooLargeError
from fuseconv.serving.requests import Request, read_request
from fuseconv.serving.responses import Tensor, framed, write_response

CONTRACT = Contract(parse_inputs(["x=f32[n:1..4,3]", "ids=i64[n]"]), ("y", "z"))
X = {"name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2.5, 3, 4, 5, 6]}
IDS = {"name": "ids", "datatype": "INT64", "shape": [2], "data": [7, 8]}


def read(message: Any, blob: bytes = b"", contract: Contract = CONTRACT) -> Request:
    text = message if isinstance(message, bytes) else orjson.dumps(message)
    return read_request(bytearray(text + blob), str(len(text)), contract)


def raw(size: int, **fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2, 3], "parameters": {"binary_data_size": size}, **fields}


@pytest.mark.parametrize(
    "data", [[1, 2.5, 3, 4, 5, 6], [[1, 2.5, 3], [4, 5, 6]]], ids=["flat in row-major order", "nested"]
)
def test_numbers_in_json(data: Any) -> None:
    found = read({"id": "a", "inputs": [IDS, {**X, "data": data}], "outputs": [{"name": "z"}]})
    assert found.id == "a"
    assert found.outputs == {"z": False}
    x, ids = found.arrays  # in the order of the contract
    assert (str(x.dtype), x.tolist()) == ("float32", [[1, 2.5, 3], [4, 5, 6]])
    assert (str(ids.dtype), ids.tolist()) == ("int64", [7, 8])


@pytest.mark.parametrize("short", DATATYPES)
def test_every_datatype_in_binary_data(short: str) -> None:
    datatype = DATATYPES[short]
    bits = np.arange(2 * ARRAYS[datatype].itemsize, dtype=np.uint8) % 2
    contract = Contract(parse_inputs([f"x={short}[2]"]), ("y",))
    one = {"name": "x", "datatype": datatype, "shape": [2], "parameters": {"binary_data_size": bits.nbytes}}
    (found,) = read({"inputs": [one]}, bits.tobytes(), contract).arrays
    assert (found.dtype, found.shape, found.tobytes()) == (ARRAYS[datatype], (2,), bits.tobytes())
    made = write_response("m", "1", "", {"y": Tensor(datatype, found)}, {"y": True})
    assert made.content.endswith(bits.tobytes())
    if datatype != "BF16":
        text = orjson.loads(write_response("m", "1", "", {"y": Tensor(datatype, found)}, {"y": False}).content)
        (again,) = read(
            {"inputs": [{**one, "parameters": {}, "data": text["outputs"][0]["data"]}]}, b"", contract
        ).arrays
        assert again.tobytes() == found.tobytes()


def test_an_empty_batch() -> None:
    contract = Contract(parse_inputs(["x=f32[n:0..4,3]"]), ("y",))
    for one, blob in (({**X, "shape": [0, 3], "data": []}, b""), (raw(0, shape=[0, 3]), b"")):
        assert read({"inputs": [one]}, blob, contract).arrays[0].shape == (0, 3)


def test_outputs_may_ask_for_binary_data_each_for_itself() -> None:
    wanted = [{"name": "y", "parameters": {"binary_data": False}}, {"name": "z"}]
    found = read({"inputs": [X, IDS], "outputs": wanted, "parameters": {"binary_data_output": True}})
    assert found.outputs == {"y": False, "z": True}


DEEP = b'{"inputs": ' + b"[" * 100_000
WRONG: dict[str, tuple[Any, bytes, type[FuseconvError], str]] = {
    "nothing": (b"", b"", RequestError, "not JSON"),
    "no object": ([1], b"", RequestError, "does not follow the KServe v2 protocol"),
    "deep": (DEEP, b"", RequestError, "depth limit"),
    "NaN": (orjson.dumps({"inputs": [X, IDS]}).replace(b"2.5", b"NaN"), b"", RequestError, "not JSON"),
    "infinity": (orjson.dumps({"inputs": [X, IDS]}).replace(b"2.5", b"-Infinity"), b"", RequestError, "not JSON"),
    "not UTF-8": (b'{"id": "\xff"}', b"", RequestError, "not JSON"),
    "too long": (b" " * (messages.MAX_JSON + 1), b"", TooLargeError, "at most"),
    "an unknown field": ({"inputs": [X, IDS], "input": []}, b"", RequestError, "Extra inputs"),
    "a parameter that is not supported": (
        {"inputs": [X, {**IDS, "parameters": {"shared_memory_region": "x"}}]},
        b"",
        RequestError,
        "Extra inputs",
    ),
    "no inputs": ({}, b"", RequestError, "Field required"),
    "too few": ({"inputs": [X]}, b"", ContractError, "takes 2 inputs (x, ids), but the call passes x"),
    "an unknown input": ({"inputs": [X, {**IDS, "name": "id"}]}, b"", ContractError, "takes 2 inputs"),
    "an input twice": ({"inputs": [X, IDS, X]}, b"", RequestError, "x is sent more than once"),
    "an unknown datatype": ({"inputs": [{**X, "datatype": "float32"}, IDS]}, b"", RequestError, "unknown datatype"),
    "another datatype": ({"inputs": [{**X, "datatype": "FP64"}, IDS]}, b"", ContractError, "has dtype f64"),
    "a size outside": (
        {"inputs": [{**X, "shape": [5, 3]}, IDS]},
        b"",
        ContractError,
        "size 5 at axis 0, outside n:1..4",
    ),
    "tied sizes": (
        {"inputs": [X, {**IDS, "shape": [1], "data": [7]}]},
        b"",
        ContractError,
        "n=1 at axis 0, but x has 2",
    ),
    "a negative size": ({"inputs": [{**X, "shape": [-1, 3]}, IDS]}, b"", RequestError, "greater than or equal to 0"),
    "a size that is a float": ({"inputs": [{**X, "shape": [2.0, 3]}, IDS]}, b"", RequestError, "valid integer"),
    "a size that is a bool": ({"inputs": [{**X, "shape": [True, 3]}, IDS]}, b"", RequestError, "valid integer"),
    "huge sizes": ({"inputs": [{**X, "shape": [2**62, 2**62]}, IDS]}, b"", ContractError, "size 4611686018427387904"),
    "a huge rank": ({"inputs": [{**X, "shape": [1] * 1000}, IDS]}, b"", RequestError, "at most 32"),
    "too few numbers": ({"inputs": [{**X, "data": [1]}, IDS]}, b"", RequestError, "which needs 6 numbers"),
    "ragged": ({"inputs": [{**X, "data": [[1, 2, 3], [4, 5]]}, IDS]}, b"", RequestError, "does not have the shape"),
    "nested too deeply": (
        {"inputs": [{**X, "data": [[[1, 2, 3, 4, 5, 6]]]}, IDS]},
        b"",
        RequestError,
        "have the shape",
    ),
    "nested at the end": ({"inputs": [{**X, "data": [1, 2, 3, 4, 5, [6]]}, IDS]}, b"", RequestError, "type list"),
    "strings": ({"inputs": [{**X, "data": ["1"] * 6}, IDS]}, b"", RequestError, "values of type str"),
    "null": ({"inputs": [{**X, "data": [None] * 6}, IDS]}, b"", RequestError, "values of type null"),
    "a float for an integer": ({"inputs": [X, {**IDS, "data": [7, 8.0]}]}, b"", RequestError, "values of type float"),
    "a bool for an integer": ({"inputs": [X, {**IDS, "data": [7, True]}]}, b"", RequestError, "values of type bool"),
    "beyond FP32": ({"inputs": [{**X, "data": [1e300] * 6}, IDS]}, b"", RequestError, "out of the range of FP32"),
    "beyond INT64": ({"inputs": [X, {**IDS, "data": [2**63, 1]}]}, b"", RequestError, "out of the range of INT64"),
    "no values": ({"inputs": [{**X, "data": None}, IDS]}, b"", RequestError, "has no values"),
    "both": ({"inputs": [raw(24, data=[1]), IDS]}, b"\0" * 24, RequestError, "both data and binary data"),
    "too few bytes": ({"inputs": [raw(20), IDS]}, b"\0" * 20, RequestError, "has 20 bytes, but FP32"),
    "bytes that are not there": (
        {"inputs": [raw(24), IDS]},
        b"\0" * 20,
        RequestError,
        "24 bytes of binary data, but 20",
    ),
    "bytes that nobody has": ({"inputs": [X, IDS]}, b"\0", RequestError, "0 bytes of binary data, but 1 bytes follow"),
    "an unknown output": ({"inputs": [X, IDS], "outputs": [{"name": "w"}]}, b"", RequestError, "w does not exist"),
    "an output twice": (
        {"inputs": [X, IDS], "outputs": [{"name": "z"}] * 2},
        b"",
        RequestError,
        "z is requested twice",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_body_is_refused(case: str) -> None:
    message, blob, kind, said = WRONG[case]
    with pytest.raises(kind, match=re.escape(said)) as caught:
        read(message, blob)
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize("length", ["-1", "1.0", "+3", "999999", "9" * 5000, "\u0664", ""])
def test_a_wrong_length_of_the_json_is_refused(length: str) -> None:
    with pytest.raises(RequestError, match="the JSON cannot have"):
        read_request(bytearray(b"{}"), length, CONTRACT)


def test_integers_outside_of_the_range_of_the_contract_are_refused() -> None:
    contract = Contract.from_json(
        {**CONTRACT.to_json(), "inputs": [{**CONTRACT.to_json()["inputs"][1], "low": 0, "high": 8}]}
    )
    assert read({"inputs": [IDS]}, b"", contract).arrays[0].tolist() == [7, 8]
    for values, said in (([7, 9], "has the value 9, outside 0..8"), ([-1, 0], "has the value -1, outside 0..8")):
        with pytest.raises(ContractError, match=said):
            read({"inputs": [{**IDS, "data": values}]}, b"", contract)


def test_bytes_of_booleans_are_0_or_1() -> None:
    contract = Contract(parse_inputs(["x=bool[2]"]), ("y",))
    one = {"name": "x", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}}
    with pytest.raises(RequestError, match="other than 0 and 1"):
        read({"inputs": [one]}, b"\1\2", contract)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16"])
def test_what_json_cannot_express_is_refused(value: float, datatype: str) -> None:
    array = np.array([1, value], np.float32)
    array = (array.view(np.uint32) >> 16).astype(np.uint16) if datatype == "BF16" else array.astype(ARRAYS[datatype])
    with pytest.raises(NotFiniteError, match="y contains NaN or infinities"):
        write_response("m", "1", "", {"y": Tensor(datatype, array)}, {"y": False})
    assert write_response("m", "1", "", {"y": Tensor(datatype, array)}, {"y": True}).content.endswith(array.tobytes())


def test_bfloat16_is_written_as_json_and_not_read() -> None:
    bits = np.array([0x3F80, 0xC020], np.uint16)
    text = write_response("m", "1", "a", {"y": Tensor("BF16", bits)}, {"y": False}).content
    assert orjson.loads(text)["outputs"][0]["data"] == [1.0, -2.5]
    contract = Contract(parse_inputs(["x=bf16[2]"]), ("y",))
    with pytest.raises(RequestError, match="BF16 cannot be represented in JSON"):
        read({"inputs": [{"name": "x", "datatype": "BF16", "shape": [2], "data": [1, 2]}]}, b"", contract)


def test_binary_data_follows_the_json_in_the_order_of_the_outputs() -> None:
    made = framed({"a": 1}, [np.array([[1, 2], [3, 4]], np.int16).T, np.zeros((0, 3), np.float32)])
    assert made.content == b'{"a":1}' + np.array([1, 3, 2, 4], np.int16).tobytes()
    assert made.headers["inference-header-content-length"] == "7"
