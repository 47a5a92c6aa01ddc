"""A bundle as a function of batches, without Ray: how batches are divided, and what the contract refuses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.calls import draw
from support.served import with_buckets

import fuseconv
from fuseconv.contract.buckets import Buckets
from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import ContractError, UnsupportedError, UsageError
from fuseconv.numerics.tolerance import compare
from fuseconv.ray import Predictor
from fuseconv.ray.predictor import axis_of_rows, column_of, parts, tensor_of
from fuseconv.runtime.model import load

Columns = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def block(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_buckets(bundle, tmp_path_factory.mktemp("predicted") / "block.fuseconv")


def columns(rows: int) -> Columns:
    """A batch, read-only as those of Ray Data."""
    arrays = [tensor.numpy() for tensor in draw(rows, 5)]
    for array in arrays:
        array.flags.writeable = False
    return dict(zip(("x", "skip", "keep"), arrays, strict=True))


@pytest.mark.parametrize("buckets", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 17, 37])
def test_each_row_has_the_outputs_of_a_call_with_it_alone(rows: int, buckets: bool, block: Path, bundle: Path) -> None:
    predict = Predictor(block if buckets else bundle, target="torchscript", keep=["id"])
    batch = {**columns(rows), "id": np.arange(rows), "other": np.arange(rows)}
    found = predict(batch)
    model = load(bundle, target="torchscript")
    alone = [
        model(*(torch.from_numpy(np.array(batch[name][at : at + 1])) for name in model.contract.names))
        for at in range(rows)
    ]
    assert list(found) == ["id", *model.contract.outputs]
    assert found["id"] is batch["id"]
    for name in model.contract.outputs:
        expected = torch.cat([getattr(outputs, name) for outputs in alone])
        assert compare(torch.from_numpy(found[name]), expected, expected.double()).ok


DIVIDED: dict[str, tuple[Dim, int, list[int]]] = {
    "a batch that is allowed": (Dim("n", 1, 16), 16, [16]),
    "one row more": (Dim("n", 1, 16), 17, [8, 9]),
    "a rest that alone would be too small": (Dim("n", 4, 16), 33, [11, 11, 11]),
    "too small": (Dim("n", 4, 16), 3, [3]),
    "nothing": (Dim("n", 1, 16), 0, [0]),
    "no limit": (Dim("n", 1, UNBOUNDED), 10**6, [10**6]),
    "a static size": (Dim("n", 4, 4), 12, [4, 4, 4]),
    "multiples": (Dim("n", 8, 32, 8), 72, [24, 24, 24]),
    "unequal multiples": (Dim("n", 8, 16, 8), 40, [8, 16, 16]),
    "no multiple": (Dim("n", 8, 8, 8), 9, [9]),
    "fewer than the step": (Dim("n", 8, 16, 8), 5, [5]),
}


@pytest.mark.parametrize("case", DIVIDED)
def test_a_batch_is_divided(case: str) -> None:
    dim, rows, sizes = DIVIDED[case]
    found = list(parts(dim, rows))
    assert [part.stop - part.start for part in found] == sizes
    assert [found[0].start, *(part.stop for part in found)] == [0, *np.cumsum(sizes)]


AXES: dict[str, tuple[list[str], Buckets | None, Dim | None]] = {
    "a dim": (["x=f32[batch:1..16,8]", "y=f32[batch]"], None, Dim("batch", 1, 16)),
    "buckets": (["x=f32[batch:1..64,8]"], Buckets("batch", (1, 32), ("y",)), Dim("batch", 1, 32)),
    "a static size": (["x=f32[4,8]"], None, Dim("rows", 4, 4)),
    "two dims": (["x=f32[batch:1..16,8]", "y=f32[seq:1..16]"], None, None),
    "a scalar": (["x=f32[batch:1..16,8]", "y=f32[]"], None, None),
    "scalars": (["x=f32[]"], None, None),
}


@pytest.mark.parametrize("case", AXES)
def test_the_first_axis_of_all_inputs_is_the_row(case: str) -> None:
    inputs, buckets, expected = AXES[case]
    contract = Contract(parse_inputs(inputs), ("y",), buckets=buckets)
    if expected is not None:
        assert axis_of_rows(contract, "a.fuseconv") == expected
        return
    with pytest.raises(UnsupportedError, match="do not have the same first axis") as caught:
        axis_of_rows(contract, "a.fuseconv")
    assert caught.value.where == "a.fuseconv"


REFUSED: dict[str, tuple[Mapping[str, Any], str]] = {
    "no column": ({"x": None}, "the batch has no column x, only skip, keep"),
    "another dtype": ({"x": np.zeros((2, 5, 8))}, "input x has dtype f64, but the contract says f32"),
    "another size": ({"x": np.zeros((2, 5, 9), "f4")}, "input x has size 9 at axis 2"),
    "other rows": ({"x": np.zeros((3, 5, 8), "f4")}, "input skip has batch=2 at axis 0, but x has 3"),
    "no numbers": ({"x": np.array(["a", "b"])}, "input x is a column of <U1, which is no tensor"),
    "rows of two shapes": ({"x": np.array([[1], [1, 2]], dtype=object)}, "which is no tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_contract_refuses_a_batch(case: str, block: Path) -> None:
    changed, said = REFUSED[case]
    batch = {name: array for name, array in {**columns(2), **changed}.items() if array is not None}
    with pytest.raises(ContractError, match=said):
        Predictor(block, target="torchscript")(batch)


def test_what_cannot_be_a_column(generating_folder: Path, block: Path) -> None:
    with pytest.raises(UsageError, match="several methods") as caught:
        Predictor(generating_folder / "llama.fuseconv")
    assert "prefill" in caught.value.fix
    output = load(block, target="torchscript").contract.outputs[0]
    with pytest.raises(UsageError, match=f"the column {output} has the name of an output"):
        Predictor(block, target="torchscript", keep=[output])
    with pytest.raises(ContractError, match="no column id"):
        Predictor(block, target="torchscript", keep=["id"])(columns(2))
    with pytest.raises(UnsupportedError, match=r"output y has the shape \[\] for 2 rows"):
        column_of("y", torch.zeros(()), 2)


def test_bfloat16_is_float32_in_columns() -> None:
    values = np.array([1.0, 1.0 + 2**-7, 3e38], "f4")
    tensor = tensor_of(values, TensorSpec("x", "bf16", (3,)))
    assert tensor.dtype == torch.bfloat16
    back = column_of("y", tensor, 3)
    assert back.dtype == np.float32
    assert back[:2].tolist() == values[:2].tolist()
    assert (
        tensor_of(values.astype("f8"), TensorSpec("x", "bf16", (3,))).dtype == torch.float64
    )  # the contract refuses it


def test_ray_is_not_imported() -> None:
    code = "import fuseconv, sys; fuseconv.ray.Predictor; print('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    assert fuseconv.ray.Predictor is Predictor
