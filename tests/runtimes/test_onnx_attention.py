"""Attention in ONNX against PyTorch, in every form that models use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from ml_dtypes import bfloat16 as BFLOAT16
from onnx.reference import ReferenceEvaluator
from safetensors.torch import load_file, save_file
from support import small_bundle
from support.shared import made_once
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.numerics.tolerance import compare
from fuseconv.targets import Context, onnx_export
from fuseconv.targets import onnx as target

HEADS, QUERIES, KEYS, WIDTH = 4, 3, 5, 8
EMPTY = 1
"""The query that may see no key, where a mask has one."""

NAMES = ("query", "key", "value", "mask")


class Attention(torch.nn.Module):
    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor]:
        return (F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **self.arguments),)


def tensors(
    dtype: torch.dtype = torch.float32, outer: tuple[int, ...] = (2, HEADS), shared: tuple[int, int] = (HEADS, HEADS)
) -> list[Tensor]:
    """Query, key and value; `shared` is how many heads the last two have."""
    generator = torch.Generator().manual_seed(0)
    keys, values = ((*outer[:-1], count) if outer else () for count in shared)
    shapes = ((*outer, QUERIES, WIDTH), (*keys, KEYS, WIDTH), (*values, KEYS, WIDTH - 2))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def mask(kind: str, *, hides_all: bool, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """No mask, or one with a query that may see one key, or none if `hides_all`."""
    if kind == "none":
        return []
    sees = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    sees[2, 1:] = False
    sees[EMPTY] = torch.arange(KEYS) == (KEYS if hides_all else 2)
    if kind == "bool":
        return [sees]
    low = {"inf": -math.inf, "lowest": torch.finfo(dtype).min, "bias": -2.5}[kind]
    return [torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, low)]


@dataclass(frozen=True)
class Row:
    """One call, and whether the query EMPTY gets zeros."""

    arguments: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    is_empty: bool = False


def spec(name: str, tensor: Tensor) -> str:
    return f"{name}={SHORT_DTYPES[str(tensor.dtype)]}[{','.join(map(str, tensor.shape))}]"


def row(kind: str = "none", hides_all: bool = False, dtype: torch.dtype = torch.float32, **given: Any) -> Row:
    shape = {name: given.pop(name) for name in ("outer", "shared") if name in given}
    inputs = (*tensors(dtype, **shape), *mask(kind, hides_all=hides_all, dtype=given.pop("mask_dtype", dtype)))
    return Row(given, inputs, is_empty=hides_all and kind in ("bool", "inf"))


def padding(kind: str, shape: tuple[int, ...]) -> Row:
    """The last sequence of the batch is padding alone."""
    sees = torch.ones(shape, dtype=torch.bool)
    sees[-1] = False
    low = torch.finfo(torch.float32).min if kind == "lowest" else -math.inf
    added = torch.zeros(shape).masked_fill(~sees, low)
    return Row({}, (*tensors(), sees if kind == "bool" else added))


MASKS = [("none", False), *itertools.product(["bool", "inf", "lowest", "bias"], [False, True])]
DTYPES = [torch.float16, torch.float32, torch.float64]
SHARED = [(4, 4), (2, 2), (2, 1)]
RANKS: list[tuple[int, ...]] = [(), (3,), (2, 4), (2, 3, 4)]
SHAPES = [(1, KEYS), (2, 1, 1, KEYS), (2, 1, QUERIES, KEYS), (2, HEADS, QUERIES, KEYS)]

ROWS: dict[str, Row] = {
    **{
        f"{kind}{' empty' * hides_all}, heads {shared}, {dtype}": row(
            kind, hides_all, dtype, shared=shared, enable_gqa=shared != (4, 4)
        )
        for (kind, hides_all), shared, dtype in itertools.product(MASKS, SHARED, DTYPES)
    },
    **{
        f"{'causal ' * is_causal}scale {scale}, outer {outer}": row(
            outer=outer, shared=(outer or (1,))[-1:] * 2, is_causal=is_causal, scale=scale
        )
        for outer, scale, is_causal in itertools.product(RANKS, [None, 0.3, -0.3], [False, True])
    },
    **{
        f"causal, heads {shared}, {dtype}": row(shared=shared, dtype=dtype, is_causal=True, enable_gqa=True)
        for shared, dtype in itertools.product([*SHARED, (1, 2)], DTYPES)
    },
    **{
        f"float32 mask {kind}, {dtype}": row(kind, True, dtype, mask_dtype=torch.float32)
        for kind, dtype in itertools.product(["inf", "lowest", "bias"], DTYPES)
    },
    **{
        f"padding {kind} of {shape}": padding(kind, shape)
        for kind, shape in itertools.product(["bool", "inf", "lowest"], SHAPES)
    },
}


class SideBySide(torch.nn.Module):
    """All rows, so that one export serves them."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        rest = iter(inputs)
        return tuple(Attention(**row.arguments)(*itertools.islice(rest, len(row.inputs)))[0] for row in ROWS.values())


def write(module: torch.nn.Module, inputs: Sequence[str], folder: Path) -> Callable[..., tuple[Tensor, ...]]:
    path = target.write(small_bundle.program(module, inputs), folder, Context(folder))
    return target.load(folder / path, "cpu")


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What ONNX Runtime computes, by row. Of several workers the first exports the model, which takes seconds."""

    def compute(output: Path) -> None:
        inputs = [tensor for row in ROWS.values() for tensor in row.inputs]
        specs = [spec(f"input_{index}", tensor) for index, tensor in enumerate(inputs)]
        computed = write(SideBySide(), specs, tmp_path_factory.mktemp("rows"))(*inputs)
        save_file({name: tensor.contiguous() for name, tensor in zip(ROWS, computed, strict=True)}, output)

    return load_file(made_once(tmp_path_factory, "attention_rows.safetensors", compute))


@pytest.mark.parametrize("name", ROWS)
def test_every_row(name: str, found: dict[str, Tensor]) -> None:
    row = ROWS[name]
    module = Attention(**row.arguments)
    (original,) = module(*row.inputs)
    (fp64,) = module(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in row.inputs))
    row_of_output = compare(found[name], original, fp64)
    assert row_of_output.ok, row_of_output.reason
    if "padding" in name:
        assert found[name][-1].eq(0).all() == ("lowest" not in name)
    else:
        assert found[name][..., EMPTY, :].eq(0).all() == row.is_empty


@pytest.mark.parametrize("kind", ["bool", "inf", "bias"])
def test_numbers_that_are_not_finite_come_out_where_pytorch_has_them(kind: str, tmp_path: Path) -> None:
    clean = row(kind, hides_all=True).inputs
    module = Attention()
    run = write(module, [spec(name, tensor) for name, tensor in zip(NAMES, clean, strict=True)], tmp_path)
    for index, number in itertools.product(range(3), (math.nan, math.inf, -math.inf)):
        inputs = [*(tensor.abs() for tensor in clean[:3]), clean[3]]
        inputs[index][0, 0, EMPTY, 3] = number
        with sdpa_kernel(
            SDPBackend.MATH
        ):  # the one made of plain operators; others differ where a number is not finite
            (expected,) = module(*inputs)
        assert not (math.isnan(number) and expected.isfinite().all())
        torch.testing.assert_close(run(*inputs)[0], expected, equal_nan=True)


BF16_ROWS = {
    **{f"{kind}{' empty' * hidden}": row(kind, hidden, torch.bfloat16) for kind, hidden in MASKS},
    **{f"float32 mask {kind}": row(kind, True, torch.bfloat16, mask_dtype=torch.float32) for kind in ("inf", "bias")},
    "causal": row(dtype=torch.bfloat16, is_causal=True),
}


@pytest.mark.parametrize("name", BF16_ROWS)
def test_bfloat16_is_neither_compared_nor_selected_and_right(name: str, tmp_path: Path) -> None:
    """ONNX Runtime's kernels for bfloat16 are on CUDA alone, and are not these; the numbers are ONNX's own here."""
    row = BF16_ROWS[name]
    module = Attention(**row.arguments)
    specs = [spec(name, tensor) for name, tensor in zip(NAMES, row.inputs, strict=False)]
    path = tmp_path / target.SPEC.artifact
    onnx_export.save(small_bundle.program(module, specs), path)
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    values = (*model.graph.value_info, *model.graph.input, *model.graph.output)
    short = {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16}
    touched = {node.op_type for node in model.graph.node if short & {*node.input, *node.output}}
    assert {"MatMul", "Mul"} <= touched
    assert not touched & {"Equal", "Where", "Trilu", "ConstantOfShape"}

    given = {
        name: tensor.view(torch.uint16).numpy().view(BFLOAT16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
        for name, tensor in zip(NAMES, row.inputs, strict=False)
    }
    with np.errstate(invalid="ignore"):  # its softmax of a row of -inf is NaN, as ONNX's is
        (found,) = ReferenceEvaluator(model).run(None, given)
    (original,) = module(*row.inputs)
    (fp64,) = module(*(tensor.double() if tensor.is_floating_point() else tensor for tensor in row.inputs))
    row_of_output = compare(torch.from_numpy(found.view("uint16")).view(torch.bfloat16), original, fp64)
    assert row_of_output.ok, row_of_output.reason


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 5, 2), (4, 2, 7)], ids=str)
def test_sizes_stay_dynamic(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    batch, rows, keys = sizes
    module = Attention(enable_gqa=True)
    run = write(
        module,
        (
            "query=f32[batch:1..9,4,rows:1..9,8]",
            "key=f32[batch,2,keys:1..9,8]",
            "value=f32[batch,1,keys,6]",
            "mask=bool[batch,1,rows,keys]",
        ),
        tmp_path,
    )
    shapes = ((batch, 4, rows, 8), (batch, 2, keys, 8), (batch, 1, keys, 6), (batch, 1, rows, keys))
    *inputs, noise = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in shapes)
    torch.testing.assert_close(run(*inputs, noise > 0), module(*inputs, noise > 0))


def test_the_width_may_be_dynamic_and_causal_is_too(tmp_path: Path) -> None:
    module = Attention(is_causal=True)
    specs = ("query=f32[2,rows:1..9,width:1..9]", "key=f32[2,keys:1..9,width]", "value=f32[2,keys,width]")
    run = write(module, specs, tmp_path)
    inputs = [torch.randn(2, size, 6, generator=torch.Generator().manual_seed(1)) for size in (4, 7, 7)]
    torch.testing.assert_close(run(*inputs), module(*inputs))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("none", ["Mul", "Transpose", "MatMul", "Softmax", "MatMul"]),
        ("inf", ["Mul", "Transpose", "MatMul", "Add", "Equal", "Softmax", "Where", "MatMul"]),
        ("bool", ["Mul", "Transpose", "MatMul", "Where", "Add", "Equal", "Softmax", "Where", "MatMul"]),
    ],
)
def test_the_graph_is_small(kind: str, expected: list[str], tmp_path: Path) -> None:
    inputs = row(kind, hides_all=True).inputs
    write(Attention(), [spec(name, tensor) for name, tensor in zip(NAMES, inputs, strict=False)], tmp_path)
    nodes = onnx.load(tmp_path / "model.onnx").graph.node
    assert [node.op_type for node in nodes if node.op_type != "Constant"] == expected
