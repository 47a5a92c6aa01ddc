"""The check of one tensor of a call, which bundles and fused modules share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fuseconv.contract.dims import UNBOUNDED, Affine, Dim, Size
from fuseconv.contract.expected import Expected, Values
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract
from fuseconv.errors import ContractError

N = Dim("n", 2, 16)
OPEN = Dim("n", 2, UNBOUNDED)
EIGHTS = Dim("n", 8, 64, 8)


def check(shapes: Sequence[tuple[Size, ...]], sizes: Sequence[tuple[int, ...]]) -> Values:
    """Checks a call with the tensors a, b, ... of these sizes."""
    values: Values = {}
    for name, shape, size in zip("abcd", shapes, sizes, strict=False):
        Expected(name, "f32", "cpu", shape, "pass another").check(torch.zeros(size, device="cpu"), values)
    return values


@pytest.mark.parametrize(
    ("shapes", "sizes", "n"),
    [
        ([(N,)], [(2,)], 2),
        ([(N,)], [(16,)], 16),
        ([(EIGHTS,)], [(64,)], 64),
        ([(OPEN,)], [(100_000,)], 100_000),
        ([(N, N)], [(3, 3)], 3),
        ([(Affine(N, 2),)], [(32,)], 16),
        ([(Affine(N, 1, 1),)], [(3,)], 2),
        ([(Affine(N, 3, -2),)], [(4,)], 2),
        ([(Affine(N, -1, 20),)], [(4,)], 16),
        ([(Affine(EIGHTS, 2, 1),)], [(33,)], 16),
        ([(Affine(OPEN, 2),)], [(100_000,)], 50_000),
        ([(Affine(N, 2), N), (Affine(N, 1, 1), 7)], [(6, 3), (4, 7)], 3),
    ],
)
def test_sizes_that_are_allowed(shapes: list[tuple[Size, ...]], sizes: list[tuple[int, ...]], n: int) -> None:
    assert check(shapes, sizes) == {"n": (n, "a")}


@pytest.mark.parametrize(
    ("shapes", "sizes", "said"),
    [
        ([(7,)], [(6,)], "input a has size 6 at axis 0, but the contract says 7"),
        ([(N,)], [(3, 3)], "input a has 2 dims [3, 3], but the contract says 1"),
        ([(7, N)], [(7, 1)], "input a has size 1 at axis 1, outside n:2..16"),
        ([(N,)], [(17,)], "input a has size 17 at axis 0, outside n:2..16"),
        ([(OPEN,)], [(1,)], "input a has size 1 at axis 0, outside n:2.."),
        ([(EIGHTS,)], [(12,)], "input a has size 12 at axis 0, not a multiple of 8"),
        ([(N, N)], [(3, 4)], "input a has n=4 at axis 1, but a has 3"),
        ([(EIGHTS,), (EIGHTS,)], [(8,), (12,)], "input b has n=12 at axis 0, but a has 8"),
        ([(Affine(N, 2),)], [(7,)], "input a has size 7 at axis 0, not a multiple of 2"),
        ([(Affine(N, 2),)], [(34,)], "input a has size 34 at axis 0, outside 2*(n:2..16)"),
        ([(Affine(N, 2),)], [(2,)], "input a has size 2 at axis 0, outside 2*(n:2..16)"),
        ([(Affine(OPEN, 2),)], [(2,)], "input a has size 2 at axis 0, outside 2*(n:2..)"),
        ([(Affine(N, 1, 1),)], [(2,)], "input a has size 2 at axis 0, outside (n:2..16)+1"),
        ([(Affine(N, 1, -1),)], [(16,)], "input a has size 16 at axis 0, outside (n:2..16)-1"),
        ([(Affine(N, -1, 20),)], [(3,)], "input a has size 3 at axis 0, outside -1*(n:2..16)+20"),
        ([(Affine(N, 2, 1),)], [(8,)], "input a has size 8 at axis 0, not 2*n+1"),
        ([(Affine(EIGHTS, 2, 1),)], [(9,)], "input a has size 9 at axis 0, outside 2*(n:8..64:8)+1"),
        ([(N,), (Affine(N, 2),)], [(3,), (7,)], "input b has size 7 at axis 0, not a multiple of 2"),
        ([(N,), (Affine(N, 2),)], [(3,), (8,)], "input b has n=4 at axis 0, but a has 3"),
        ([(Affine(N, 2),), (Affine(N, 3, 1),)], [(6,), (7,)], "input b has n=2 at axis 0, but a has 3"),
    ],
)
def test_sizes_that_are_refused(shapes: list[tuple[Size, ...]], sizes: list[tuple[int, ...]], said: str) -> None:
    with pytest.raises(ContractError) as caught:
        check(shapes, sizes)
    assert caught.value.what == said
    assert (caught.value.where, caught.value.fix) == (said[:7], "pass another")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (3, "is of type int, not a torch.Tensor"),
        (torch.zeros(7).numpy(), "is of type ndarray, not a torch.Tensor"),
        (torch.zeros(7).double(), "has dtype f64, but the contract says f32"),
        (torch.zeros(7).to(torch.float8_e4m3fn), "has dtype torch.float8_e4m3fn, but the contract says f32"),
        (torch.zeros(7, device="meta"), "is on meta, but the contract says cpu"),
    ],
)
def test_another_kind_of_value_is_refused(value: object, said: str) -> None:
    expected = Expected("0.bias", "f32", "cpu", (7,), "pass another", "parameter")
    with pytest.raises(ContractError, match=f"parameter 0.bias {said}"):
        expected.check(value, {})


@pytest.mark.parametrize("size", [1, 4, 7, 8, 12, 64, 72])
@pytest.mark.parametrize("text", ["x=f32[8]", "x=f32[n:4..64]", "x=f32[n:8..64:8]", "x=f32[n:4..64,n]"])
def test_a_contract_refuses_in_the_same_words(text: str, size: int) -> None:
    def refused(check: Any) -> str:
        try:
            check()
        except ContractError as error:
            return str(error)
        return ""

    (spec,) = parse_inputs([text])
    expected = Expected(spec.name, spec.dtype, "cpu", spec.shape, f"pass {spec}")
    tensor = torch.zeros([size] * len(spec.shape))
    assert refused(lambda: expected.check(tensor, {})) == refused(lambda: Contract((spec,), ()).bind((tensor,), {}))


def test_a_traced_size_is_not_compared_with_a_bound_that_does_not_exist() -> None:
    class Traced(int):
        def __gt__(self, other: int) -> bool:
            raise AssertionError(other)

    assert OPEN.refusal(Traced(5)) == ""
    assert dataclasses.replace(OPEN, min=6).refusal(Traced(5)) == "outside n:6.."


def test_no_torch_is_needed() -> None:
    tensor = SimpleNamespace(dtype="torch.float32", device="cpu", shape=(3,))
    values: Values = {}
    Expected("x", "f32", "cpu", (N,), "").check(tensor, values)
    assert values == {"n": (3, "x")}
