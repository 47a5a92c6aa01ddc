"""The configuration of a model for Triton Inference Server, from the contract of a bundle.

Triton batches requests only if every input and output has the batch as its first axis, and then leaves that axis out of
the shapes in the configuration. A bundle allows it if the conversion proved that the model does not mix the rows.
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
"""The folder beside the versions of a model in which Triton looks for the values of a warm-up."""

_DELAY_US = 2000
"""How long the first request of a batch waits for others, in microseconds: the default of `fuseconv serve`."""


@dataclass(frozen=True)
class Tensor:
    """An input or output as Triton is told: its datatype, and its shape with -1 for a size that varies."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def described(self, *, batched: bool) -> Message:
        """Returns the message of the configuration. The batch is not one of the dims."""
        dims = self.shape[1:] if batched else self.shape
        return {"name": self.name, "data_type": type_of(self.datatype), "dims": list(dims)}


@dataclass(frozen=True)
class Batching:
    """How requests are combined.

    Attributes:
        limit: the maximum number of rows of a batch. 0: each request is computed by itself.
        preferred: the numbers of rows for which the model has CUDA graphs.
        reason: why requests are not combined. Empty if they are.
    """

    limit: int
    preferred: tuple[int, ...] = ()
    reason: str = ""


def tensors(contract: Contract, outputs: Sequence[Described]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the inputs and outputs.

    Raises:
        UnsupportedError: one is a scalar, which Triton does not have.
    """
    inputs = [Tensor(spec.name, DATATYPES[spec.dtype], _shape(spec.shape)) for spec in contract.inputs]
    made = [Tensor(one.name, one.datatype, one.shape) for one in outputs]
    for kind, each in (("input", inputs), ("output", made)):
        for one in each:
            if not one.shape:
                raise UnsupportedError(
                    f"the {kind} {one.name} is a scalar, and Triton has no tensors without axes",
                    where=f"{kind} {one.name}",
                    fix="convert a model that takes and returns a tensor of one element instead",
                )
    return inputs, made


def batching(contract: Contract, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Batching:
    """Returns how Triton may combine requests."""
    buckets = contract.buckets
    if buckets is None:
        return Batching(0, reason="the bundle has no buckets: convert with --bucket to have requests batched")
    without = [spec.name for spec in contract.inputs if buckets.dim not in {dim.name for dim in spec.dims()}]
    without += [name for name in contract.outputs if name not in buckets.outputs]
    if without:
        return Batching(0, reason=f"{without[0]} has no rows of {buckets.dim}, and Triton batches all tensors or none")
    if alone := [one.name for one in (*inputs, *outputs) if len(one.shape) == 1]:
        return Batching(0, reason=f"{alone[0]} has no axis but {buckets.dim}, and Triton needs another one")
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
    """Returns the message `ModelConfig`.

    Args:
        name: the name of the model.
        backend: the fields that select the backend: `backend`, or `platform`.
        inputs: the inputs.
        outputs: the outputs.
        how: how requests are combined.
        device: `cpu` or `cuda`.
        instances: how many copies of the model are loaded, on a GPU how many on each.
        parameters: what the backend is told.
        libraries: the paths of op libraries that ONNX Runtime loads.
        warm_up: what the model is called with when it is loaded, before it is ready: the shapes and datatypes of the
            values in files of `WARM_UP` with these names. Batched, they are one row.
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
    """Returns the name that a configuration has for a datatype of the protocol."""
    return Enum(f"TYPE_{datatype}")


def _warm_up(rows: int, values: Mapping[str, Tensor], *, batched: bool) -> Message:
    inputs = [
        {"key": name, "value": {**_without_name(one.described(batched=batched)), "input_data_file": name}}
        for name, one in values.items()
    ]
    return {"name": f"{rows} rows" if batched else "the first case", "batch_size": rows, "inputs": inputs}


def _without_name(message: Message) -> Message:
    return {name: value for name, value in message.items() if name != "name"}


def _shape(sizes: Sequence[int | Dim]) -> tuple[int, ...]:
    return tuple(-1 if isinstance(size, Dim) else size for size in sizes)
