"""A client for any server that supports the KServe v2 protocol over HTTP. Does not import torch."""

from __future__ import annotations

import http.client
import math
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UpstreamError, UsageError, printable
from fuseconv.serving.datatypes import ARRAYS, DATATYPES
from fuseconv.serving.json_tensors import Array, array_of, numbers_of
from fuseconv.serving.refusals import RequestError
from fuseconv.serving.requests import HEADER_LENGTH
from fuseconv.serving.responses import Body, Tensor, framed

BINARY = "binary_tensor_data"
"""The protocol extension for sending tensors as binary data."""

MAX_ANSWER = 2**30
"""The maximum size of a response in bytes. A larger response is an error, because the server is not trusted."""


@dataclass(frozen=True)
class Client:
    """Calls one model on a server over HTTP.

    Attributes:
        url: the URL of the server.
        model: the name of the model.
        timeout: how long to wait for a response, in seconds.
    """

    url: str
    model: str
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(
                f"{self.url} is not an HTTP or gRPC URL",
                where="--server",
                fix="write http://HOST:PORT or grpc://HOST:PORT",
            )

    def metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Requests the metadata of the server and of the model, and returns both as parsed JSON objects.

        Raises:
            UpstreamError: the server does not answer, or does not serve the model.
        """
        return self._json(self._send("/v2")[0]), self._json(self._send(self._path)[0])

    def infer(self, contract: Contract, arrays: Sequence[Array], *, binary: bool) -> Mapping[str, Tensor]:
        """Sends one inference request and returns the outputs by name.

        Args:
            contract: the contract of the model.
            arrays: one array per input, in the order of the contract.
            binary: whether tensors are sent and received as binary data. JSON cannot express NaN and infinities.

        Raises:
            UpstreamError: the server returns an error, or does not return the outputs of the contract.
        """
        made = request_of(contract, arrays, binary=binary)
        content, headers = self._send(f"{self._path}/infer", made)
        try:
            outputs = answer_of(content, headers.get(HEADER_LENGTH))
        except (KeyError, TypeError, ValueError, FuseconvError) as error:
            raise self._error(f"the response does not follow the protocol: {type(error).__name__}: {error}") from error
        if missing := [name for name in contract.outputs if name not in outputs]:
            raise self._error(f"the response lacks the output {missing[0]}")
        return outputs

    @property
    def _path(self) -> str:
        return f"/v2/models/{self.model}"

    def _send(self, path: str, body: Body | None = None) -> tuple[bytes, Mapping[str, str]]:
        """Sends a POST request with a body, or a GET request without one. Returns the response's body and headers.

        The names of the headers are in lower case.

        Raises:
            UpstreamError: the server does not answer, returns an error status, or sends more than `MAX_ANSWER` bytes.
        """
        request = urllib.request.Request(  # noqa: S310 - the scheme was checked
            self.url.rstrip("/") + path, body.content if body else None, dict(body.headers) if body else {}
        )
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # noqa: S310 - as above
                content = answer.read(MAX_ANSWER + 1)
                if len(content) > MAX_ANSWER:
                    raise self._error(f"the response has more than {MAX_ANSWER} bytes")
                return content, {name.lower(): value for name, value in answer.headers.items()}
        except urllib.error.HTTPError as error:
            said = printable(error.read(4096).decode(errors="replace"))
            raise self._error(f"the server answered {error.code} to {path}: {said}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise self._error(f"the server does not answer: {reason}") from error

    def _json(self, content: bytes) -> dict[str, Any]:
        """Parses a JSON object. Raises UpstreamError if the content is anything else."""
        try:
            found = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise self._error(f"the response is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._error("the response is not a JSON object")
        return found

    def _error(self, what: str) -> UpstreamError:
        return UpstreamError(what, where=self.url, fix="check the URL, the name of the model and the log of the server")


def request_of(contract: Contract, arrays: Sequence[Array], *, binary: bool) -> Body:
    """Serializes an inference request that requests every output of the contract.

    Raises:
        NotFiniteError: a value is NaN or infinite, which JSON cannot express, and `binary` is False.
    """
    inputs: list[dict[str, Any]] = []
    for spec, array in zip(contract.inputs, arrays, strict=True):
        one = {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": list(array.shape)}
        if binary:
            inputs.append({**one, "parameters": {"binary_data_size": array.nbytes}})
        else:
            inputs.append(
                {**one, "data": numbers_of(array, DATATYPES[spec.dtype], f"input {spec.name}", "send binary data")}
            )
    wanted = {"parameters": {"binary_data": True}} if binary else {}
    outputs = [{"name": name, **wanted} for name in contract.outputs]
    return framed({"inputs": inputs, "outputs": outputs}, arrays if binary else ())


def answer_of(content: bytes, header_length: str | None) -> dict[str, Tensor]:
    """Parses the body of an inference response and returns the outputs by name.

    Args:
        content: the whole body.
        header_length: the value of the HTTP header `HEADER_LENGTH`. None if the response does not contain the header.

    Raises:
        KeyError, TypeError, ValueError, RequestError: the body is not a response of the protocol.
    """
    at = len(content) if header_length is None else int(header_length)
    outputs: dict[str, Tensor] = {}
    for one in orjson.loads(content[:at])["outputs"]:
        name, datatype, shape = str(one["name"]), one["datatype"], tuple(map(int, one["shape"]))
        size = one.get("parameters", {}).get("binary_data_size")
        if size is None:
            array = array_of(one["data"], datatype, shape, f"output {name}")
        else:
            dtype = ARRAYS[datatype]
            if size != math.prod(shape) * dtype.itemsize or not 0 <= at <= at + size <= len(content):
                what = f"it has {size} bytes for {datatype} {list(shape)}"
                raise RequestError(what, where=f"output {name}")
            array = np.frombuffer(bytearray(content[at : at + size]), dtype).reshape(shape)
            at += size
        outputs[name] = Tensor(datatype, array)
    return outputs
