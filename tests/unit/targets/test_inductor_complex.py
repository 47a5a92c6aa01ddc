"""Complex arithmetic is written with ops that AOTInductor packages can call, and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from support import small_bundle
from support.functions import Function
from torch import Tensor
from torch.fft import irfft, rfft

from fuseconv.graph.nodes import arguments
from fuseconv.targets import TARGETS, Context
from fuseconv.targets.inductor_complex import respell_complex_arithmetic


def in_place(x: Tensor) -> Tensor:
    z = rfft(x)
    z *= 2
    z -= rfft(x * 3)
    z /= x.shape[0] + 1
    return irfft(z)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "a number": lambda x: irfft(rfft(x) / 16 * 0.5 - 3),
    "a size": lambda x: irfft(rfft(x) / x.shape[0]),
    "a complex number": lambda x: irfft((rfft(x) + 1j) * (2.0 - 0.5j)),
    "a difference": lambda x: irfft(rfft(x) - rfft(x * 2)),
    "from a number": lambda x: irfft(3 - rfft(x)),
    "in place": in_place,
    "float64": lambda x: irfft(rfft(x.double()) / 3),
}


@pytest.fixture(scope="module")
def all_of_them() -> torch.nn.Module:
    return Function(lambda _, x: tuple(function(x) for function in FUNCTIONS.values()))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_result_is_the_same(name: str) -> None:
    module = Function(lambda _, x: FUNCTIONS[name](x))
    exported = small_bundle.program(module, ("x=f32[batch:1..4,16]",)).exported
    respell_complex_arithmetic(exported)
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        if isinstance(node.target, torch._ops.OpOverload) and isinstance(value, Tensor) and value.is_complex():
            assert not node.target._schema.name.removesuffix("_").endswith("sub")
            kinds = {one.name: one.type.kind() for one in node.target._schema.arguments}
            assert not any(
                isinstance(given, int) and kinds[key] == "TensorType" for key, given in arguments(node).items()
            )
    torch.testing.assert_close(exported.module()(x := torch.randn(3, 16)), module(x), rtol=0, atol=0)


@pytest.mark.compiles
def test_a_package_computes_it(all_of_them: torch.nn.Module, tmp_path: Path) -> None:
    program = small_bundle.program(all_of_them, ("x=f32[batch:1..4,16]",))
    target = TARGETS["aoti"]
    run = target.load(tmp_path / target.write(program, tmp_path, Context(tmp_path)), "cpu")
    for found, expected in zip(run(x := torch.randn(3, 16)), all_of_them(x), strict=True):
        torch.testing.assert_close(found, expected)
