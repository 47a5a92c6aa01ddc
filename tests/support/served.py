"""Bundles that are served, and requests to an ASGI application without a socket."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from starlette.types import ASGIApp

from fuseconv.bundle.manifest import open_bundle, seal
from fuseconv.contract.buckets import Buckets
from fuseconv.contract.spec import Contract
from fuseconv.serving.datatypes import DATATYPES
from fuseconv.serving.exchange import Sent, answer
from fuseconv.serving.requests import HEADER_LENGTH
from fuseconv.serving.responses import framed

INFER = "/v2/models/block/infer"


def with_buckets(bundle: Path, copy: Path) -> Path:
    """Copies the small bundle, whose model does not mix the rows of a batch, and says so in its contract."""
    shutil.copytree(bundle, copy)
    manifest = open_bundle(copy)
    contract = manifest.contract
    buckets = Buckets("batch", (1, 4, 8), contract.outputs)
    seal(copy, manifest.model_copy(update={"contract": replace(contract, buckets=buckets)}))
    return copy


@dataclass(frozen=True)
class Answer:
    """A response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    def arrays(self) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
        """Returns the f32 outputs of a response in binary data."""
        at = int(self.headers[HEADER_LENGTH])
        found = {}
        for output in orjson.loads(self.body[:at])["outputs"]:
            size = output["parameters"]["binary_data_size"]
            dtype = {"FP32": np.float32, "INT64": np.int64, "BOOL": np.bool_}[output["datatype"]]
            found[output["name"]] = np.frombuffer(self.body[at : at + size], dtype).reshape(output["shape"])
            at += size
        assert at == len(self.body)
        return found


async def call(
    app: ASGIApp,
    path: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Sends a request to an application: GET, or POST with a body, which may come in parts."""
    parts = [body] if isinstance(body, bytes) else list(body or ())
    given = {"content-length": str(len(body))} if isinstance(body, bytes) else {}
    pairs = tuple((name.encode(), value.encode()) for name, value in {**given, **(headers or {})}.items())
    found = await answer(app, Sent("GET" if body is None else "POST", path, pairs, b""), parts)
    return Answer(found.status, {name.decode(): value.decode() for name, value in found.headers}, found.body)


def binary(contract: Contract, arrays: Iterable[Any], **fields: Any) -> tuple[bytes, dict[str, str]]:
    """Returns the body and headers of a request in binary data, whose outputs are asked for in it too."""
    each = list(arrays)
    inputs = [
        {
            "name": spec.name,
            "datatype": DATATYPES[spec.dtype],
            "shape": list(array.shape),
            "parameters": {"binary_data_size": array.nbytes},
        }
        for spec, array in zip(contract.inputs, each, strict=True)
    ]
    made = framed({"inputs": inputs, "parameters": {"binary_data_output": True}, **fields}, each)
    return made.content, dict(made.headers)
