"""Ops with unusual arguments in ONNX and TorchScript against PyTorch, several functions per program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.lowering_table import Table
from support.lowerings import NOT_IN_ONNX, TABLES
from torch import Tensor
from torch.nn import functional as F

from fuseconv import ops
from fuseconv.contract.dims import Dim
from fuseconv.contract.input_text import parse_inputs
from fuseconv.errors import UnsupportedError
from fuseconv.targets import TARGETS, Context

DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16}

AT_ONCE = 56
"""Functions in one program: to export one takes most of a second, whatever is in it."""


class Functions(torch.nn.Module):
    """Several functions of the same inputs; every output of each."""

    def __init__(self, functions: list[Callable[..., object]]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        results = [function(*inputs) for function in self.functions]
        return tuple(leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, Tensor))


def programs() -> list[tuple[str, int]]:
    return [(name, first) for name, table in TABLES.items() for first in range(0, len(table.functions), AT_ONCE)]


def inputs_of(table: Table, rows: int, *, ties: bool) -> list[Tensor]:
    """Random tensors, or multiples of a half, of which many are equal, zero or halves; integers of both signs."""
    generator = torch.Generator().manual_seed(rows)
    tensors = []
    for spec in parse_inputs(list(table.inputs)):
        shape = [rows if isinstance(size, Dim) else size for size in spec.shape]
        if spec.dtype == "i64":
            tensors.append(torch.randint(-9, 10, shape, generator=generator))
        else:
            values = torch.randn(shape, generator=generator, dtype=DTYPES[spec.dtype])
            tensors.append((values * 2).round() / 2 if ties else values)
    return tensors


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("target", ["onnx", "torchscript"])
@pytest.mark.parametrize(("table", "first"), programs())
def test_ops_compute_what_they_compute_in_pytorch(table: str, first: int, target: str, tmp_path: Path) -> None:
    rows = TABLES[table]
    names = [name for name in list(rows.functions)[first : first + AT_ONCE] if name not in NOT_IN_ONNX]
    modules = [Functions([rows.functions[name]]) for name in names]
    program = small_bundle.program(Functions([rows.functions[name] for name in names]), rows.inputs)
    run = TARGETS[target].load(tmp_path / TARGETS[target].write(program, tmp_path, Context(tmp_path)), "cpu")
    for ties in (False, True):
        for size in rows.sizes:
            tensors = inputs_of(rows, size, ties=ties)
            with torch.no_grad():
                expected = [module(*(tensor.clone() for tensor in tensors)) for module in modules]
            results = iter(run(*tensors))
            for name, values in zip(names, expected, strict=True):
                for at, value in enumerate(values):
                    said = f"{target}, {name}, output {at}, {size} rows{', ties' if ties else ''}"
                    check(next(results), value, rows.error, said)


def check(found: Tensor, expected: Tensor, error: float, said: str) -> None:
    assert found.dtype == expected.dtype, said
    rtol = max(error, 1e-3 if expected.dtype == torch.half else 0)
    torch.testing.assert_close(
        found, expected, rtol=rtol, atol=error, equal_nan=True, msg=lambda text: f"{said}: {text}"
    )


@pytest.mark.parametrize("name", NOT_IN_ONNX)
def test_what_onnx_has_no_form_for_is_named(name: str, tmp_path: Path) -> None:
    table = next(table for table in TABLES.values() if name in table.functions)
    program = small_bundle.program(Functions([table.functions[name]]), table.inputs)
    with pytest.raises(UnsupportedError, match=NOT_IN_ONNX[name]):
        TARGETS["onnx"].write(program, tmp_path, Context(tmp_path))


TAILS: dict[str, Callable[[Tensor], Tensor]] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "silu in place": lambda x: F.silu(x + 0, inplace=True),
    "glu": lambda x: F.glu(torch.cat((x + 1, x), -1)),
    "a fused gate": lambda x: ops.gated_act(torch.cat((x, x + 1), -1), "silu"),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_is_small_has_its_digits_too(name: str, tmp_path: Path) -> None:
    """ONNX Runtime's own sigmoid on a CPU is right to 1e-7: of what is as small nothing."""
    program = small_bundle.program(Functions([TAILS[name]]), ["x=f32[n:1..64,16]"])
    run = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.linspace(-80, 20, 64 * 16).reshape(64, 16)
    torch.testing.assert_close(run(x)[0], TAILS[name](x), rtol=2e-6, atol=1e-37)
    special = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0]).repeat(4)[None]
    torch.testing.assert_close(run(special)[0], TAILS[name](special), rtol=0, atol=0, equal_nan=True)


def test_what_the_exporter_spells_out_is_replaced_in_turn(tmp_path: Path) -> None:
    """The loss becomes a log_sigmoid, for which the exporter takes the logarithm of a sigmoid: of 0, below -104."""
    loss = Functions([lambda x: F.binary_cross_entropy_with_logits(x, torch.ones_like(x), reduction="none")])
    program = small_bundle.program(loss, ["x=f32[n:1..64,16]"])
    run = TARGETS["onnx"].load(tmp_path / TARGETS["onnx"].write(program, tmp_path, Context(tmp_path)), "cpu")
    x = torch.linspace(-200, 20, 64 * 16).reshape(64, 16)
    torch.testing.assert_close(run(x)[0], loss(x)[0], rtol=1e-6, atol=1e-6)
