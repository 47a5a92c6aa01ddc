"""Serializes inference responses: JSON, followed by the binary data of tensors. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from fuseconv.serving.json_tensors import Array, numbers_of
from fuseconv.serving.requests import HEADER_LENGTH


@dataclass(frozen=True)
class Tensor:
    """A tensor of the protocol: its datatype, such as `FP32`, and its values."""

    datatype: str
    array: Array


@dataclass(frozen=True)
class Body:
    """The body of a message, and the HTTP headers that describe it."""

    content: bytes
    headers: Mapping[str, str]


def framed(header: Mapping[str, Any], blobs: Sequence[Array]) -> Body:
    """Serializes the body of a request or response: JSON, followed by the binary data of the arrays, if any."""
    text = orjson.dumps(header, option=orjson.OPT_SERIALIZE_NUMPY)
    if not blobs:
        return Body(text, {"content-type": "application/json"})
    content = b"".join([text, *(np.ascontiguousarray(blob).data.cast("B") if blob.size else b"" for blob in blobs)])
    return Body(content, {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(text))})


def write_response(
    model: str, version: str, request_id: str, outputs: Mapping[str, Tensor], binary: Mapping[str, bool]
) -> Body:
    """Serializes the response to an inference request.

    Args:
        model: the name of the model.
        version: the version of the weights that computed the outputs.
        request_id: the client's id for the request. Empty if the client did not send an id.
        outputs: every output of the model by name.
        binary: for each output to send, by name, whether to send it as binary data.

    Raises:
        NotFiniteError: an output that is sent as JSON contains NaN or infinities.
    """
    described: list[dict[str, Any]] = []
    blobs = []
    for name, as_binary in binary.items():
        tensor = outputs[name]
        one: dict[str, Any] = {"name": name, "datatype": tensor.datatype, "shape": list(tensor.array.shape)}
        if as_binary:
            one["parameters"] = {"binary_data_size": tensor.array.nbytes}
            blobs.append(tensor.array)
        else:
            fix = 'request it with "parameters": {"binary_data": true}'
            one["data"] = numbers_of(tensor.array, tensor.datatype, f"output {name}", fix)
        described.append(one)
    header: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request_id:
        header["id"] = request_id
    return framed(header, blobs)
