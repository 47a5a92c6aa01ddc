"""A bundle as a function of batches, for `ray.data.Dataset.map_batches`. Does not import Ray.

Ray Data passes columns of rows as NumPy arrays, and divides the rows into batches as it likes. The contract of the
bundle says which batches the model takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import ContractError, UnsupportedError, UsageError
from fuseconv.runtime.cuda_graphs import Choice
from fuseconv.runtime.methods import load
from fuseconv.runtime.model import Model

Columns = Mapping[str, np.ndarray[Any, Any]]
"""The columns of a batch by name. The first axis of each column is the row."""


class Predictor:
    """Calls the model of a bundle with batches of rows. Ray Data constructs one object per actor.

    A batch with more rows than the contract allows, or than the largest bucket, is divided into calls of about equal
    size. The result is the same for every division only if the model does not mix rows, which `convert --bucket`
    proves.

    Args:
        bundle: the folder of the bundle, or of one of its methods, at the same path on every node.
        target: the name of a target. Default: as for `fuseconv.load`.
        device: the device that the bundle must be for. Default: not checked.
        cuda_graphs: whether calls are captured in CUDA graphs, as for `fuseconv.load`.
        cuda_graphs_memory: the maximum GPU memory of the CUDA graphs in bytes, as for `fuseconv.load`.
        warm_seconds: for about how many seconds to warm up the model, as for `fuseconv.load`.
        keep: the names of columns that are copied to the result, such as the key of each row.

    Raises:
        UsageError: the bundle has several methods, or a kept column has the name of an output.
        UnsupportedError: the first axis is not the same in all inputs, so that it cannot be the row.
        FuseconvError: the bundle does not load, as for `fuseconv.load`.

    Examples:
        >>> predict = fuseconv.ray.Predictor("mlp.fuseconv")
        >>> columns = predict({"input": torch.zeros(2, 8).numpy()})
        >>> {name: column.shape for name, column in columns.items()}
        {'output_0': (2, 4)}
    """

    def __init__(
        self,
        bundle: str | Path,
        target: str | None = None,
        device: str | None = None,
        cuda_graphs: Choice = "auto",
        cuda_graphs_memory: int | None = None,
        warm_seconds: float | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        model = load(bundle, target, device, cuda_graphs, cuda_graphs_memory, warm_seconds)
        if not isinstance(model, Model):
            fix = f"give the folder of one of them: {', '.join(model.methods)}"
            raise UsageError("the bundle has several methods", where=str(bundle), fix=fix)
        if taken := [name for name in keep if name in model.contract.outputs]:
            raise UsageError(
                f"the column {taken[0]} has the name of an output",
                where="keep",
                fix="rename the column with Dataset.rename_columns",
            )
        self._model = model
        self._rows = axis_of_rows(model.contract, bundle)
        self._keep = tuple(keep)

    def __call__(self, batch: Columns) -> dict[str, np.ndarray[Any, Any]]:
        """Computes the outputs of a batch.

        Args:
            batch: a column for each input of the contract, with its name, dtype and shape. An input in bfloat16 takes
                a float32 column, because NumPy has no bfloat16. Other columns are ignored.

        Returns:
            A column for each output by its name, and the columns to keep. An output in bfloat16 is a float32 column.

        Raises:
            ContractError: a column is missing or violates the contract, or the contract allows no such number of rows.
            UnsupportedError: an output does not have one row per row of the batch.
            UpstreamError: the artifact failed, for example because memory ran out.
        """
        contract = self._model.contract
        for name in (*contract.names, *self._keep):
            if name not in batch:
                raise _no_column(name, batch, contract)
        made: list[list[np.ndarray[Any, Any]]] = []
        for part in parts(self._rows, max(len(batch[name]) for name in contract.names)):
            inputs = [tensor_of(batch[spec.name][part], spec).to(contract.device) for spec in contract.inputs]
            outputs = self._model(*inputs)
            tensors = [outputs] if len(contract.outputs) == 1 else list(outputs)
            rows = part.stop - part.start
            made.append([column_of(*each, rows) for each in zip(contract.outputs, tensors, strict=True)])
        columns = [parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*made, strict=True)]
        return {**{name: batch[name] for name in self._keep}, **dict(zip(contract.outputs, columns, strict=True))}


def axis_of_rows(contract: Contract, bundle: str | Path) -> Dim:
    """Returns the allowed numbers of rows: the dim of the first axis of every input, up to the largest bucket.

    Raises:
        UnsupportedError: the inputs differ in their first axis, or have none.
    """
    first = {spec.shape[:1] for spec in contract.inputs}
    if len(first) != 1 or first == {()}:
        raise UnsupportedError(
            f"the inputs do not have the same first axis: {', '.join(map(str, contract.inputs))}",
            where=str(bundle),
            fix="convert a model in which the first axis of each input is the row, with the same dim",
        )
    ((rows,),) = first
    if isinstance(rows, int):
        return Dim("rows", rows, rows)
    largest = contract.buckets.sizes[-1] if contract.buckets is not None else UNBOUNDED
    return replace(rows, max=rows.allowed(largest))


def parts(allowed: Dim, rows: int) -> Iterator[slice]:
    """Yields the rows of each call: few calls of about equal size, which are multiples of the dim's step.

    If the dim does not allow a number of rows, the contract refuses one of the calls.
    """
    steps = rows // allowed.step
    calls = max(1, min(steps, -(-rows // allowed.max)))
    ends = [steps * at // calls * allowed.step for at in range(calls)] + [rows]
    yield from map(slice, ends, ends[1:])


def _no_column(name: str, batch: Columns, contract: Contract) -> ContractError:
    """Returns the error for a column that a batch does not have."""
    return ContractError(
        f"the batch has no column {name}, only {', '.join(batch)}",
        where="the batch",
        fix=f"name the columns {', '.join(contract.names)} with Dataset.rename_columns",
    )


def tensor_of(column: np.ndarray[Any, Any], spec: TensorSpec) -> torch.Tensor:
    """Copies the rows of a column to a tensor on the CPU, because the arrays of Ray Data are read-only.

    Raises:
        ContractError: the rows differ in their shape, or are not numbers.
    """
    try:
        tensor = torch.from_numpy(np.array(column, order="C"))
    except TypeError as error:
        raise ContractError(
            f"input {spec.name} is a column of {column.dtype}, which is no tensor",
            where=f"input {spec.name}",
            fix=f"pass {spec}; rows of different shapes must be padded to the same shape",
        ) from error
    return tensor.bfloat16() if (spec.dtype, tensor.dtype) == ("bf16", torch.float32) else tensor


def column_of(name: str, tensor: torch.Tensor, rows: int) -> np.ndarray[Any, Any]:
    """Converts an output to a column. Raises UnsupportedError if it does not have `rows` rows."""
    if tensor.shape[:1] != (rows,):
        raise UnsupportedError(
            f"output {name} has the shape {list(tensor.shape)} for {rows} rows",
            where=f"output {name}",
            fix="convert a model in which the first axis of each output is the row",
        )
    array: np.ndarray[Any, Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()
    return array
