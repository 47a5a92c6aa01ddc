"""Defines the class that Triton's Python backend instantiates to run a bundle, with compatible requests as a batch.

The file `model.py` in a model repository imports this module. The module `triton_python_backend_utils` exists only in
Triton's own processes.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as backend
from torch.utils import dlpack

from fuseconv.contract.spec import TensorSpec
from fuseconv.errors import FuseconvError
from fuseconv.serving.engine import Call, Engine, Result
from fuseconv.serving.json_tensors import Array
from fuseconv.serving.requests import check_call
from fuseconv.serving.responses import Tensor
from fuseconv.serving.tensors import of_torch, to_torch
from fuseconv.tritonserver.python_parameters import BUNDLE, TARGET


class TritonPythonModel:
    """Runs a bundle. Triton creates one object per instance, in a separate process, and calls it from one thread."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the bundle.

        Raises:
            FuseconvError: the bundle does not load here. Triton reports this error, and reports the model as not ready.
        """
        given = {key: one["string_value"] for key, one in json.loads(args["model_config"])["parameters"].items()}
        if args["model_instance_kind"] == "GPU":
            torch.cuda.set_device(int(args["model_instance_device_id"]))
        folder = Path(args["model_repository"], args["model_version"], given[BUNDLE])
        self._engine = Engine(folder, given.get(TARGET))

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Runs requests, and returns one response per request in the same order. Requests with equal keys share a call.

        An invalid or failing request gets an error response, and does not affect the other requests.
        """
        answers: dict[int, Any] = {}
        groups: dict[Hashable, dict[int, Call]] = {}
        for at, request in enumerate(requests):
            try:
                call = tuple(_array(request, spec) for spec in self._engine.contract.inputs)
                check_call(call, self._engine.contract)
            except FuseconvError as error:
                answers[at] = _refused(error)
            else:
                groups.setdefault(self._engine.key(call), {})[at] = call
        for calls in groups.values():
            for at, made in zip(calls, self._computed(list(calls.values())), strict=True):
                answers[at] = _refused(made) if isinstance(made, FuseconvError) else _answer(made, requests[at])
        return [answers[at] for at in range(len(requests))]

    def _computed(self, calls: Sequence[Call]) -> list[Result | FuseconvError]:
        """Runs the calls as one batch, and returns the result or the error of each call.

        If the batch fails, runs each call alone, so that only the failing calls get an error.
        """
        try:
            return list(self._engine.run(calls))
        except FuseconvError as error:
            return [error] if len(calls) == 1 else [one for call in calls for one in self._computed([call])]


def _array(request: Any, spec: TensorSpec) -> Array:
    """Returns the values of an input. Triton has already checked that the request contains the input.

    Tensors are exchanged through DLPack, because NumPy has no BF16, and because Triton builds for NumPy 1 pass empty
    arrays, in both directions, when NumPy 2 is installed.
    """
    tensor = backend.get_input_tensor_by_name(request, spec.name)
    return of_torch(dlpack.from_dlpack(tensor.to_dlpack())).array


def _answer(result: Result, request: Any) -> Any:
    """Returns a Triton response that contains the outputs the request asks for."""
    wanted = [name for name in result.outputs if name in request.requested_output_names()]
    return backend.InferenceResponse([_tensor(name, result.outputs[name]) for name in wanted])


def _tensor(name: str, output: Tensor) -> Any:
    return backend.Tensor.from_dlpack(name, to_torch(output.array, output.datatype))


def _refused(error: FuseconvError) -> Any:
    return backend.InferenceResponse(error=backend.TritonError(str(error)))
