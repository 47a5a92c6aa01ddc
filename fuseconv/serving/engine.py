"""Runs batches of requests on a loaded bundle, and swaps the bundle's weights.

Requests are concatenated along the dim of the contract's buckets. The conversion has proved that the model does not mix
the rows of this dim. A bundle without buckets runs each request alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from fuseconv.bundle.files import MANIFEST
from fuseconv.bundle.manifest import REFERENCE
from fuseconv.bundle.replaced import unreplaced
from fuseconv.contract.spec import Contract
from fuseconv.errors import FuseconvError, UpstreamError
from fuseconv.runtime.model import Model, check_signature, load
from fuseconv.runtime.rows import batched
from fuseconv.serving.datatypes import DATATYPES, check_servable, datatype_in_file, no_datatype
from fuseconv.serving.json_tensors import Array
from fuseconv.serving.refusals import DrainingError
from fuseconv.serving.responses import Tensor
from fuseconv.serving.tensors import of_torch, to_torch

Call = tuple[Array, ...]
"""One array per input of the contract."""


@dataclass(frozen=True)
class Result:
    """The outputs of one request, and the version of the weights that computed them."""

    version: str
    outputs: Mapping[str, Tensor]


@dataclass(frozen=True)
class Described:
    """The name, datatype and shape of an output in the metadata of a model. A dynamic size is -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Engine:
    """Runs batches of requests on a loaded bundle. Any thread may call an engine.

    Attributes:
        bundle: the folder from which the weights were last loaded.
        contract: the contract of the bundle.
        target: the name of the loaded target.
        outputs: the name, datatype and shape of each output for the metadata. A dynamic size is -1.
    """

    def __init__(
        self,
        bundle: Path,
        target: str | None = None,
        device: str | None = None,
        signer: Path | None = None,
        warm_seconds: float | None = None,
    ) -> None:
        """Loads a bundle, and calls the model once with the inputs of the first verification case in the bundle.

        Args:
            bundle: the folder of the bundle.
            target: the target to load, as for `fuseconv.load`.
            device: the device that the bundle must be for. None for any device.
            signer: the public key of whoever must have signed this bundle, and each bundle with new weights. None to
                load unsigned bundles.
            warm_seconds: for about how many seconds to warm up the model first, as for `fuseconv.load`.

        Raises:
            RefusedError: the holder of the key did not sign exactly the files of the bundle.
            FuseconvError: the bundle does not load, as for `fuseconv.load`, or the protocol has no datatype for a
                tensor.
        """
        self._signer = signer

        def read() -> tuple[Model, tuple[Described, ...], list[torch.Tensor], str]:
            self._check_signature(bundle)
            model = load(bundle, target=target, device=device, warm_seconds=warm_seconds)
            check_servable(model.contract, str(bundle))
            outputs = described_outputs(bundle, model.contract)
            return model, outputs, _given_inputs(bundle, model.contract), _version(bundle)

        model, self.outputs, inputs, version = unreplaced(bundle, read)
        self.bundle = bundle
        self.contract: Contract = model.contract
        self.target = model.target
        self._loaded = (model, version)  # one tuple, so that a swap is atomic
        buckets = model.contract.buckets
        has = (False,) * len(model.contract.inputs) if buckets is None else batched(model.contract, buckets)
        self._has_rows = has
        self._gives_rows = tuple(buckets is not None and name in buckets.outputs for name in model.contract.outputs)
        self._broken: FuseconvError | None = None
        model(*inputs)

    @property
    def version(self) -> str:
        """The version of the weights: the first digits of the manifest's hash."""
        return self._loaded[1]

    @property
    def is_alive(self) -> bool:
        """Whether calls can succeed. False after an error that makes the device unusable for this process."""
        return self._broken is None

    def max_rows(self) -> int:
        """Returns the maximum number of rows of a batch: the largest bucket, or 1 if requests cannot be combined."""
        return 1 if self.contract.buckets is None else self.contract.buckets.sizes[-1]

    def rows(self, call: Call) -> int:
        """Returns the number of rows of a request, 1 if requests cannot be combined."""
        return next((array.shape[0] for array, has in zip(call, self._has_rows, strict=True) if has), 1)

    def key(self, call: Call) -> Hashable:
        """Returns the key of a request. Requests with equal keys may be concatenated.

        Their inputs have the same sizes on all axes except the rows, and inputs without rows have the same values.
        """
        if not any(self._has_rows):
            return object()
        pairs = zip(call, self._has_rows, strict=True)
        return tuple(array.shape[1:] if has else (array.shape, array.tobytes()) for array, has in pairs)

    def run(self, calls: Sequence[Call]) -> list[Result]:
        """Runs requests with equal keys in one model call.

        Raises:
            UpstreamError: the artifact failed.
            DrainingError: an earlier error left the device unusable.
        """
        if self._broken is not None:
            raise DrainingError(
                f"the model can no longer be called: {self._broken.what}",
                where="the device",
                fix="restart the server",
            )
        model, version = self._loaded
        inputs = [self._joined(at, arrays) for at, arrays in enumerate(zip(*calls, strict=True))]
        try:
            made = model(*inputs)
            outputs = [made] if len(self.contract.outputs) == 1 else list(made)
            on_cpu = [tensor.detach().cpu() for tensor in outputs]
        except Exception as error:
            self._check_device(error)
            raise
        rows = [self.rows(call) for call in calls]
        parts = [
            [of_torch(part) for part in tensor.split(rows)] if gives else [of_torch(tensor)] * len(calls)
            for tensor, gives in zip(on_cpu, self._gives_rows, strict=True)
        ]
        each = zip(*parts, strict=True)
        return [Result(version, dict(zip(self.contract.outputs, own, strict=True))) for own in each]

    def swap(self, bundle: Path) -> None:
        """Replaces the weights with the weights of another bundle. Each batch uses either only old or only new weights.

        Raises:
            RefusedError: the engine has a signer who did not sign exactly the files of the bundle.
            FuseconvError: the bundle does not load, as for `Model.swap`. The weights are unchanged.
        """
        fresh, inputs, version = unreplaced(bundle, lambda: self._fresh(bundle))
        fresh(*inputs)
        self._loaded = (fresh, version)
        self.bundle = bundle

    def _fresh(self, bundle: Path) -> tuple[Model, list[torch.Tensor], str]:
        self._check_signature(bundle)
        fresh = self._loaded[0].with_weights(bundle)
        return fresh, _given_inputs(bundle, fresh.contract), _version(bundle)

    def _check_signature(self, bundle: Path) -> None:
        """Checks the signature of a bundle, or of the bundle that a method belongs to, if the engine has a signer."""
        check_signature(bundle.absolute(), self._signer)

    def _joined(self, at: int, arrays: Sequence[Array]) -> torch.Tensor:
        """Concatenates one input of all requests of a batch into a tensor on the model's device.

        Args:
            at: the position of the input in the contract.
            arrays: the values of this input, one array per request. An input without rows is the same in all requests.

        Returns:
            The tensor. It is always a copy, because binary data in a request body may be unaligned.
        """
        datatype = DATATYPES[self.contract.inputs[at].dtype]
        tensors = [to_torch(array, datatype) for array in arrays]
        return (torch.cat(tensors) if self._has_rows[at] else tensors[0].clone()).to(self.contract.device)

    def _check_device(self, error: Exception) -> None:
        """Checks after an error whether the CUDA context still works. If not, marks the engine as broken."""
        if self.contract.device != "cuda":
            return
        try:
            torch.cuda.synchronize()
        except RuntimeError as lost:
            first = next(iter(str(lost).splitlines()), "")
            self._broken = UpstreamError(f"the CUDA context is lost: {first}", where=str(error)[:200])


def _version(bundle: Path) -> str:
    """Returns the first digits of the manifest's hash. The manifest contains the hashes of all other files."""
    return hashlib.sha256((bundle / MANIFEST).read_bytes()).hexdigest()[:12]


def _given_inputs(bundle: Path, contract: Contract) -> list[torch.Tensor]:
    """Returns the inputs of the first verification case in the bundle, on the contract's device."""
    with safe_open(bundle / REFERENCE, framework="pt", device=contract.device) as file:
        return [file.get_tensor(f"0/input/{spec.name}") for spec in contract.inputs]


def described_outputs(bundle: Path, contract: Contract) -> tuple[Described, ...]:
    """Returns the name, datatype and shape of each output, read from the verification cases in a bundle.

    A size that differs between cases is -1, and so is the batch size of an output with rows.

    Raises:
        UnsupportedError: an output is complex.
    """
    with safe_open(bundle / REFERENCE, framework="pt") as file:
        metadata = file.metadata()
        cases = range(len(json.loads(metadata["cases"])))
        complex_names = set(json.loads(metadata["complex"]))
        described = []
        for name in contract.outputs:
            if f"0/original/{name}" in complex_names:
                raise no_datatype("complex numbers", f"output {name}", str(bundle))
            slices = [file.get_slice(f"{case}/original/{name}") for case in cases]
            sizes = zip(*(one.get_shape() for one in slices), strict=True)
            shape = tuple(each[0] if len(set(each)) == 1 else -1 for each in sizes)
            if contract.buckets is not None and name in contract.buckets.outputs:
                shape = (-1, *shape[1:])
            described.append(Described(name, datatype_in_file(slices[0].get_dtype()), shape))
        return tuple(described)
