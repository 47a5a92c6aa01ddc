"""Verifies the outputs of a server: sends the cases of a bundle to the server, and compares the responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fuseconv.bundle.manifest import Manifest, open_bundle
from fuseconv.contract.spec import Contract
from fuseconv.errors import UsageError
from fuseconv.parity.cases import Case
from fuseconv.parity.reference import REFERENCE, read_reference, tried_of, untried_of
from fuseconv.parity.report import Report
from fuseconv.parity.verification import compare_case, with_limits
from fuseconv.pipeline.assembly import Progress
from fuseconv.pipeline.read import silent
from fuseconv.serving.client import BINARY, Client
from fuseconv.serving.datatypes import DATATYPES, check_servable
from fuseconv.serving.names import name_of
from fuseconv.serving.tensors import of_torch, to_torch

if TYPE_CHECKING:
    from fuseconv.serving.grpc_client import GrpcClient


def verify_server(bundle: str | Path, url: str, model: str | None = None, progress: Progress = silent) -> Report:
    """Verifies a model on a KServe v2 server against the reference outputs stored in a bundle.

    Args:
        bundle: the folder of the bundle with the reference outputs. Its targets are not loaded, so the server
            may run other software than fuseconv.
        url: the URL of the server, such as `http://127.0.0.1:8000` or `grpc://127.0.0.1:8001`. gRPC needs
            `fuseconv[grpc]`.
        model: the name of the model on the server. Default: the name of the bundle.
        progress: called with the name of each step; returns a context manager in which the step runs.

    Returns:
        A report with one row per case and output, for a target that is named `server`. If the server does not accept
        binary data, cases with NaN or infinities are not sent, because JSON cannot represent them.

    Raises:
        RefusedError: the bundle is damaged.
        UpstreamError: the server does not respond, or does not serve the model.
        UsageError: the names or dtypes of the served model's inputs differ from the bundle's.
    """
    folder = Path(bundle).absolute()
    manifest = open_bundle(folder)
    contract = manifest.contract
    check_servable(contract, str(folder))
    client = _client(url, model or name_of(folder))
    about, described = client.metadata()
    _check_inputs(described, contract, client)
    binary = BINARY in about.get("extensions", [])
    references = read_reference(folder / REFERENCE, replace(contract, device="cpu"))  # only the server needs a GPU
    sendable = [one for one in tried_of(references) if binary or _is_finite(one.case.inputs)]
    unsent = {one.case.name: "JSON cannot represent NaN" for one in tried_of(references) if one not in sendable}

    def run(case: Case) -> Sequence[torch.Tensor]:
        arrays = [of_torch(tensor).array for tensor in case.inputs]
        outputs = client.infer(contract, arrays, binary=binary)
        return [to_torch(outputs[name].array, outputs[name].datatype) for name in contract.outputs]

    with progress("verify"):
        rows = [row for reference in sendable for row in compare_case("server", contract, reference, run)]
    limited = with_limits(rows, manifest, _target(described, manifest))
    return Report(tuple(limited), {**untried_of(references), **unsent})


def _client(url: str, model: str) -> Client | GrpcClient:
    """Returns a gRPC client for a `grpc://` URL, and otherwise an HTTP client."""
    if not url.startswith("grpc://"):
        return Client(url, model)
    from fuseconv.serving.grpc_client import GrpcClient  # imported here because it needs packages that HTTP does not

    return GrpcClient(url, model)


def _check_inputs(described: Mapping[str, Any], contract: Contract, client: Client | GrpcClient) -> None:
    expected = {spec.name: DATATYPES[spec.dtype] for spec in contract.inputs}
    try:
        served = {str(one["name"]): str(one["datatype"]) for one in described["inputs"]}
    except (KeyError, TypeError):
        served = {}
    if served != expected:
        raise UsageError(
            f"the server's model {client.model} takes {_spelled(served)}, but the bundle takes {_spelled(expected)}",
            where=client.url,
            fix="give the bundle that the server serves, or name its model with --served-as",
        )


def _spelled(inputs: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {datatype}" for name, datatype in inputs.items()) or "nothing"


def _target(described: Mapping[str, Any], manifest: Manifest) -> str | None:
    """Returns the name of the target that the server reports to run, or None if the bundle does not contain it."""
    target = str(described.get("platform", "")).removeprefix("fuseconv_").replace("_", "-")
    return target if target in manifest.targets else None


def _is_finite(tensors: Sequence[torch.Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)
