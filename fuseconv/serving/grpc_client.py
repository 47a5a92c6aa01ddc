"""Calls a server over gRPC with the KServe v2 protocol. Does not import torch.

The message classes and the service stub come from `tritonclient`. They work with every server of the protocol.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from fuseconv.contract.spec import Contract
from fuseconv.errors import UpstreamError, printable
from fuseconv.serving.client import BINARY, MAX_ANSWER
from fuseconv.serving.datatypes import ARRAYS, DATATYPES
from fuseconv.serving.json_tensors import Array
from fuseconv.serving.responses import Tensor


@dataclass(frozen=True)
class GrpcClient:
    """Calls one model on a server over gRPC, with the same methods as `Client`.

    Attributes:
        url: the URL of the server.
        model: the name of the model.
        timeout: how long to wait for a response, in seconds.
    """

    url: str
    model: str
    timeout: float = 60.0

    def metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Requests the metadata of the server and of the model. Returns some fields of both, named as over HTTP.

        Raises:
            UpstreamError: the server does not answer, or does not serve the model.
        """
        about = self._call(self._service.ServerMetadata, service_pb2.ServerMetadataRequest())
        model = self._call(self._service.ModelMetadata, service_pb2.ModelMetadataRequest(name=self.model))
        inputs = [{"name": one.name, "datatype": one.datatype} for one in model.inputs]
        # gRPC always sends tensors as bytes, even if the server does not list the extension for binary data over HTTP.
        return {"extensions": [*about.extensions, BINARY]}, {"platform": model.platform, "inputs": inputs}

    def infer(self, contract: Contract, arrays: Sequence[Array], *, binary: bool = True) -> Mapping[str, Tensor]:
        """Sends one inference request, with tensors as bytes, and returns the outputs by name.

        Raises:
            UpstreamError: the server returns an error, or does not return the outputs of the contract.
        """
        assert binary, "gRPC supports only binary data"
        request = service_pb2.ModelInferRequest(model_name=self.model)
        for spec, array in zip(contract.inputs, arrays, strict=True):
            request.inputs.add(name=spec.name, datatype=DATATYPES[spec.dtype], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        for name in contract.outputs:
            request.outputs.add(name=name)
        answer = self._call(self._service.ModelInfer, request)
        if len(answer.outputs) != len(answer.raw_output_contents):
            raise self._error("the response does not have the bytes of every output")
        pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
        outputs = {one.name: self._tensor(one, content) for one, content in pairs}
        if missing := [name for name in contract.outputs if name not in outputs]:
            raise self._error(f"the response lacks the output {missing[0]}")
        return outputs

    def _tensor(self, described: Any, content: bytes) -> Tensor:
        """Parses an output. Raises UpstreamError if its bytes do not match its datatype and shape."""
        datatype, shape = str(described.datatype), tuple(described.shape)
        dtype = ARRAYS.get(datatype)
        if dtype is None or min(shape, default=0) < 0 or len(content) != math.prod(shape) * dtype.itemsize:
            what = f"output {described.name} has {len(content)} bytes for {datatype} {list(shape)}"
            raise self._error(f"the response does not follow the protocol: {printable(what)}")
        return Tensor(datatype, np.frombuffer(bytearray(content), dtype).reshape(shape))

    @cached_property
    def _service(self) -> Any:
        limits = [("grpc.max_receive_message_length", MAX_ANSWER), ("grpc.max_send_message_length", -1)]
        channel = grpc.insecure_channel(self.url.removeprefix("grpc://").rstrip("/"), limits)
        return service_pb2_grpc.GRPCInferenceServiceStub(channel)

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        """Calls a method of the service and returns the response. Raises UpstreamError if the call fails."""
        try:
            return method(request, timeout=self.timeout)
        except grpc.RpcError as error:
            said = printable(f"{error.code().name}: {error.details()}")
            raise self._error(f"the server does not answer: {said}") from error

    def _error(self, what: str) -> UpstreamError:
        return UpstreamError(what, where=self.url, fix="check the URL, the name of the model and the log of the server")
