"""Derives the configuration of a model for Triton Inference Server from the contract of a bundle.

Triton batches requests only if the first axis of every input and output is the batch. The shapes in the configuration
then omit this axis. A bundle allows batching if the conversion proved that the model does not mix the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.spec import Contract
from fuseconv.errors import UnsupportedError
from fuseconv.serving.datatypes import DATATYPES
from fuseconv.serving.engine import Described
from fuseconv.tritonserver.text import Enum, Message

WARM_UP = "warmup"
"""The folder, next to the version folders of a model, in which Triton looks for the input data of a warm-up."""

_DELAY_US = 2000
"""How long the first request of a batch waits for others, in microseconds. `fuseconv serve` has the same default."""


@dataclass(frozen=True)
class Tensor:
    """The name, datatype and shape of an input or output for Triton. A dynamic size is -1."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def described(self, *, batched: bool) -> Message:
        """Returns the tensor's message in `config.pbtxt`. If `batched`, its dims omit the first axis, the batch."""
        dims = self.shape[1:] if batched else self.shape
        return {"name": self.name, "data_type": type_of(self.datatype), "dims": list(dims)}


@dataclass(frozen=True)
class Batching:
    """How Triton batches requests.

    Attributes:
        limit: the maximum number of rows in a batch. 0 means that each request runs alone.
        preferred: the preferred numbers of rows: the bucket sizes, for which the model has CUDA graphs.
        reason: why requests are not batched. Empty if they are batched.
    """

    limit: int
    preferred: tuple[int, ...] = ()
    reason: str = ""


def tensors(contract: Contract, outputs: Sequence[Described]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the name, datatype and shape of each input, and of each output.

    Raises:
        UnsupportedError: an input or output is a scalar, which Triton does not support.
    """
    inputs = [Tensor(spec.name, DATATYPES[spec.dtype], _shape(spec.shape)) for spec in contract.inputs]
    made = [Tensor(one.name, one.datatype, one.shape) for one in outputs]
    for kind, each in (("input", inputs), ("output", made)):
        for one in each:
            if not one.shape:
                raise UnsupportedError(
                    f"the {kind} {one.name} is a scalar, but Triton has no tensors without axes",
                    where=f"{kind} {one.name}",
                    fix="convert a model that takes and returns a tensor of one element instead",
                )
    return inputs, made


def batching(contract: Contract, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Batching:
    """Decides whether Triton may batch requests. Returns the batch sizes, or a limit of 0 with the reason why not."""
    buckets = contract.buckets
    if buckets is None:
        return Batching(0, reason="the bundle has no buckets: convert with --bucket to batch requests")
    without = [spec.name for spec in contract.inputs if buckets.dim not in {dim.name for dim in spec.dims()}]
    without += [name for name in contract.outputs if name not in buckets.outputs]
    if without:
        return Batching(0, reason=f"{without[0]} has no rows of {buckets.dim}, but Triton batches all tensors or none")
    if alone := [one.name for one in (*inputs, *outputs) if len(one.shape) == 1]:
        return Batching(0, reason=f"{alone[0]} has only the axis {buckets.dim}, but Triton needs another axis")
    most = contract.dims()[buckets.dim].max
    return Batching(buckets.sizes[-1] if most >= UNBOUNDED else most, buckets.sizes)


def configuration(
    name: str,
    backend: Mapping[str, str],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    how: Batching,
    *,
    device: str,
    instances: int,
    parameters: Mapping[str, str],
    libraries: Sequence[str] = (),
    warm_up: Mapping[str, Tensor] | None = None,
) -> Message:
    """Returns the content of a model's `config.pbtxt`, which is a `ModelConfig` message.

    Args:
        name: the name of the model.
        backend: the fields that select the backend: `backend`, and for some backends `platform`.
        inputs: the name, datatype and shape of each input.
        outputs: the name, datatype and shape of each output.
        how: the batch limit and the preferred batch sizes, from `batching`.
        device: `cpu` or `cuda`.
        instances: the number of copies of the model that Triton loads, or for `cuda` the number of copies per GPU.
        parameters: the backend's parameters, as text by name.
        libraries: the paths of the op libraries that ONNX Runtime loads.
        warm_up: the inputs with which Triton warms up the model before the model is ready. Each entry describes the
            data in the file of that name in `WARM_UP`. For a batched model, each file holds one row.
    """
    is_batched = how.limit > 0
    message: dict[str, Any] = {
        "name": name,
        **backend,
        "max_batch_size": how.limit,
        "input": [one.described(batched=is_batched) for one in inputs],
        "output": [one.described(batched=is_batched) for one in outputs],
        "instance_group": [{"count": instances, "kind": Enum("KIND_GPU" if device == "cuda" else "KIND_CPU")}],
    }
    if is_batched:
        wait = {"max_queue_delay_microseconds": _DELAY_US}
        message["dynamic_batching"] = {"preferred_batch_size": list(how.preferred), **wait}
    if libraries:
        message["model_operations"] = {"op_library_filename": list(libraries)}
    if parameters:
        message["parameters"] = [{"key": key, "value": {"string_value": text}} for key, text in parameters.items()]
    if warm_up:
        sizes = [rows for rows in how.preferred if rows <= how.limit] if is_batched else [0]
        message["model_warmup"] = [_warm_up(rows, warm_up, batched=is_batched) for rows in sizes]
    return message


def type_of(datatype: str) -> Enum:
    """Returns Triton's enum name for a datatype of the KServe v2 protocol, such as `TYPE_FP32` for `FP32`."""
    return Enum(f"TYPE_{datatype}")


def _warm_up(rows: int, values: Mapping[str, Tensor], *, batched: bool) -> Message:
    """Returns the message for one warm-up request: `rows` copies of the stored row, or the first case if not batched.

    `values` describes the tensor in each data file, by file name.
    """
    inputs = [
        {"key": name, "value": {**_without_name(one.described(batched=batched)), "input_data_file": name}}
        for name, one in values.items()
    ]
    return {"name": f"{rows} rows" if batched else "the first case", "batch_size": rows, "inputs": inputs}


def _without_name(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "name"}


def _shape(sizes: Sequence[int | Dim]) -> tuple[int, ...]:
    """Returns a shape in which each dynamic size is -1."""
    return tuple(-1 if isinstance(size, Dim) else size for size in sizes)
