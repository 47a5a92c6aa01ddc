"""Parses and validates inference requests: JSON, followed by the binary data of tensors. Does not import torch.

A body is validated before any array is created from it: first the names and number of inputs, then the dtypes and
shapes against the contract, and then the number of bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fuseconv.contract.dtypes import DTYPES
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import ContractError
from fuseconv.serving.datatypes import ARRAYS, SHORT
from fuseconv.serving.json_tensors import Array, array_of
from fuseconv.serving.messages import InferRequest, Input, parsed
from fuseconv.serving.refusals import RequestError

HEADER_LENGTH = "inference-header-content-length"
"""The HTTP header that gives the size of the JSON in a body, in bytes. The rest of the body is binary data."""


@dataclass(frozen=True)
class Request:
    """A request that satisfies the contract.

    Attributes:
        id: the client's id for the request. Empty if the client does not send an id.
        arrays: one array per input, in the order of the contract. Arrays from binary data share the body's memory.
        outputs: for each output to send, by name, whether to send it as binary data.
    """

    id: str
    arrays: tuple[Array, ...]
    outputs: Mapping[str, bool]


@dataclass(frozen=True)
class _Described:
    """The properties of a tensor that `Contract.bind` checks, without the tensor's values."""

    dtype: str
    device: str
    shape: tuple[int, ...]


def read_request(body: bytearray, header_length: str | None, contract: Contract) -> Request:
    """Parses the body of an inference request and validates it.

    Args:
        body: the whole body.
        header_length: the value of the HTTP header `HEADER_LENGTH`. None if the request does not contain the header.
        contract: the contract of the model.

    Raises:
        ContractError: the request violates the contract.
        RequestError: the body is not a request of the protocol, or its data does not match its declared sizes.
    """
    view = memoryview(body)
    split = len(body) if header_length is None else _split(header_length, len(body))
    message: InferRequest = parsed(InferRequest, view[:split])
    inputs = {one.name: one for one in message.inputs}
    if len(inputs) != len(message.inputs):
        names = [one.name for one in message.inputs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"the input {twice} is sent more than once", where="inputs", fix="send each input only once")
    described = {one.name: _described(one, contract.device) for one in message.inputs}
    contract.bind((), described)
    contents = _binary(message.inputs, view[split:])
    arrays = tuple(_array(inputs[spec.name], spec, contents) for spec in contract.inputs)
    return Request(message.id, arrays, _outputs(message, contract))


def check_call(call: Sequence[Array], contract: Contract) -> None:
    """Checks the shapes and values of arrays against the contract.

    Args:
        call: one array per input, in the order and with the dtypes of the contract, which are not checked.
        contract: the contract of the model.

    Raises:
        ContractError: a shape or a value violates the contract.
    """
    described = {
        spec.name: _Described(DTYPES[spec.dtype], contract.device, array.shape)
        for spec, array in zip(contract.inputs, call, strict=True)
    }
    contract.bind((), described)
    for spec, array in zip(contract.inputs, call, strict=True):
        _check_range(array, spec)


def _split(header_length: str, size: int) -> int:
    """Parses the header `HEADER_LENGTH` and returns the size of the JSON in bytes, at most the body's `size`."""
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 16) or (
        int(header_length) > size
    ):
        what = f"the JSON cannot have {header_length[:32]!r} bytes, because the body has only {size}"
        raise RequestError(what, where=HEADER_LENGTH, fix="send the number of bytes of the JSON")
    return int(header_length)


def _described(one: Input, device: str) -> _Described:
    """Returns the dtype, device and shape of an input. Raises RequestError if the datatype is unknown."""
    if one.datatype not in SHORT:
        what = f"the input {one.name} has the unknown datatype {one.datatype!r}"
        raise RequestError(what, where=f"input {one.name}", fix=f"use one of {', '.join(SHORT)}")
    return _Described(DTYPES[SHORT[one.datatype]], device, tuple(one.shape))


def _binary(inputs: Sequence[Input], data: memoryview) -> Mapping[str, memoryview]:
    """Splits the binary data after the JSON, and returns the bytes of each input that is sent as binary data, by name.

    Raises:
        RequestError: the inputs declare more or fewer bytes than the body contains.
    """
    contents: dict[str, memoryview] = {}
    at = 0
    for one in inputs:
        if (size := one.parameters.binary_data_size) is not None:
            contents[one.name] = data[at : at + size]
            at += size
    if at != len(data):
        raise RequestError(
            f"the inputs declare {at} bytes of binary data, but {len(data)} bytes follow the JSON",
            where="binary_data_size",
            fix="send exactly as many bytes as the inputs declare, "
            f"and set the {HEADER_LENGTH} header to the length of the JSON",
        )
    return contents


def _array(one: Input, spec: TensorSpec, contents: Mapping[str, memoryview]) -> Array:
    """Returns the values of an input, from its JSON data or from its binary data in `contents`."""
    where = f"input {spec.name}"
    if (one.data is None) == (one.name not in contents):
        has = "no values" if one.data is None else "both data and binary data"
        raise RequestError(f"the input {one.name} has {has}", where=where, fix="send data, or binary_data_size")
    shape = tuple(one.shape)
    if one.data is not None:
        array = array_of(one.data, one.datatype, shape, where)
    else:
        dtype, content = ARRAYS[one.datatype], contents[one.name]
        if len(content) != (expected := math.prod(shape) * dtype.itemsize):
            raise RequestError(
                f"the input {one.name} has {len(content)} bytes, but {one.datatype} of the shape {list(shape)} needs "
                f"{expected}",
                where=where,
                fix="send the elements in row-major order, little-endian, without padding",
            )
        if spec.dtype == "bool" and len(content) and int(np.frombuffer(content, np.uint8).max()) > 1:
            raise RequestError(
                f"the input {one.name} contains bytes other than 0 and 1", where=where, fix="send 0 or 1"
            )
        array = np.frombuffer(content, dtype).reshape(shape)
    _check_range(array, spec)
    return array


def _check_range(array: Array, spec: TensorSpec) -> None:
    """Checks that the values of an integer input are in the contract's range, for which parity was proved.

    A value outside the range is usually an out-of-bounds index, which ends the process on a GPU.
    """
    if spec.dtype[0] not in "iu" or not array.size:
        return
    low, high = int(array.min()), int(array.max())
    for value, outside in (
        (low, spec.low is not None and low < spec.low),
        (high, spec.high is not None and high > spec.high),
    ):
        if outside:
            bounds = "..".join("" if bound is None else f"{bound:g}" for bound in (spec.low, spec.high))
            raise ContractError(
                f"input {spec.name} has the value {value}, outside {bounds}",
                where=f"input {spec.name}",
                fix="send values in this range, for which the bundle was verified",
            )


def _outputs(message: InferRequest, contract: Contract) -> Mapping[str, bool]:
    """Returns for each output to send, by name, whether to send it as binary data. By default, sends all outputs."""
    binary = message.parameters.binary_data_output
    if not message.outputs:
        return dict.fromkeys(contract.outputs, binary)
    wanted: dict[str, bool] = {}
    for output in message.outputs:
        if output.name not in contract.outputs or output.name in wanted:
            problem = "is requested twice" if output.name in wanted else "does not exist"
            raise RequestError(
                f"the output {output.name} {problem}", where="outputs", fix=f"use {', '.join(contract.outputs)}"
            )
        wanted[output.name] = binary if output.parameters.binary_data is None else output.parameters.binary_data
    return wanted
