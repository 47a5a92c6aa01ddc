"""A program run in float64 equals the same model written in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import small_bundle
from torch import Tensor
from torch.nn import functional as F

from fuseconv.numerics.fp64 import interpret_in_float64, run_in_float64


class Model(torch.nn.Module):
    def __init__(self, function: Callable[..., object], dtype: torch.dtype) -> None:
        super().__init__()
        self.function = function
        self.dtype = dtype
        self.linear = torch.nn.Linear(8, 8)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)).bfloat16())
        self.to(dtype)

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


def region(m: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return m.linear(x).to(m.dtype) * torch.full((8,), 0.1, dtype=m.dtype)


FUNCTIONS: dict[str, Callable[..., object]] = {
    "casts": lambda m, x: m.linear(x).to(m.dtype).type(m.dtype).to(dtype=m.dtype),
    "default_dtype": lambda m, x: m.linear(x) * torch.linspace(0, 1, 8) + torch.arange(8.0) / 3,
    "dtype_arguments": lambda m, x: x.sum(1, dtype=m.dtype) + torch.arange(8, dtype=m.dtype)[None, :1].cumsum(1),
    "full": lambda m, x: x + torch.full((1,), 0.1, dtype=m.dtype) + torch.tensor(0.5),
    "in_place": lambda m, x: x.clone().mul_(0.1).add_(m.linear(x)),
    "norms": lambda m, x: (F.layer_norm(m.linear(x), (8,)), x.softmax(-1, dtype=m.dtype), F.gelu(x)),
    "region": region,
    "topk": lambda m, x: x.topk(2),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_narrow_programs_give_what_float64_gives(name: str, dtype: torch.dtype) -> None:
    short = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[dtype]
    program = small_bundle.program(Model(FUNCTIONS[name], dtype), [f"x={short}[batch:1..9,8]"])
    inputs = program.examples
    outputs = run_in_float64(program, inputs)
    wide = Model(FUNCTIONS[name], torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        expected = wide(inputs[0].double())
    finally:
        torch.set_default_dtype(torch.float32)
    for output, value in zip(outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert output.dtype == (torch.int64 if output.dtype == torch.int64 else torch.float64)
        torch.testing.assert_close(output, value, rtol=1e-12, atol=1e-12)


def test_complex_programs_run_in_complex128() -> None:
    class Rotation(torch.nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z * z.conj() + 1

    program = small_bundle.program(Rotation(), ["z=c64[n:1..9]"])
    (output,) = run_in_float64(program, program.examples)
    z = program.examples[0].to(torch.complex128)
    torch.testing.assert_close(output, z * z.conj() + 1, rtol=1e-14, atol=1e-14)


def test_the_default_dtype_is_restored_after_an_error() -> None:
    program = small_bundle.program(Model(lambda m, x: x + 1, torch.float32), ["x=f32[4]"])
    with pytest.raises((RuntimeError, TypeError)):
        run_in_float64(program, ())
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("a", "b"), [((7, 16), (3, 16, 8)), ((3, 8, 16), (16, 7)), ((16, 7), (7, 8))], ids=["rows", "columns", "inner"]
)
def test_products_of_groups_have_a_meaning_in_float64(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    draw = torch.Generator().manual_seed(0)
    narrow = [torch.randn(shape, generator=draw).bfloat16() for shape in (a, b)]
    one, other = (tensor.double() for tensor in narrow)
    ends = torch.tensor([2, 3, 7], dtype=torch.int32)
    spans = [slice(0, 2), slice(2, 3), slice(3, 7)]
    expected = {
        (2, 3): lambda: torch.cat([one[span] @ other[at] for at, span in enumerate(spans)]),
        (3, 2): lambda: torch.cat([one[at] @ other[:, span] for at, span in enumerate(spans)], 1),
        (2, 2): lambda: torch.stack([one[:, span] @ other[span] for span in spans]),
    }[len(a), len(b)]()
    graph = torch.fx.Graph()
    operands = [graph.placeholder(name) for name in ("a", "b", "ends")]
    graph.output(graph.call_function(torch.ops.aten._grouped_mm.default, tuple(operands)))
    (found,) = interpret_in_float64(torch.nn.Module(), (*narrow, ends), graph)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected)
