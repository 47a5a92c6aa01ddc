"""The calls that a fused module takes: sizes that are computed from one dim, and what ties the inputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fuseconv
from fuseconv.errors import ContractError, UnsupportedError
from fuseconv.fusing.call import CapturedCall, Constant
from fuseconv.fusing.module import Fused


class Two(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x).sum(0) + torch.relu(y).sum(0)


N = torch.export.Dim("n", min=2, max=16)
OPEN = torch.export.Dim("n", min=2)
SIZES: dict[str, tuple[Any, Any, tuple[int, int]]] = {
    "the dim": (N, N, (5, 5)),
    "a multiple, and an offset": (2 * N, N + 1, (10, 6)),
    "an offset, and a multiple": (N - 1, 3 * N, (4, 15)),  # torch names n - 1, and 3 * n is a formula of that
    "both": (2 * N + 1, N, (11, 5)),
    "without an upper bound": (2 * OPEN, OPEN, (10, 5)),
}


@pytest.fixture(scope="module")
def fused() -> dict[str, Fused]:
    return {
        name: fuseconv.fuse(
            Two(),
            tuple(torch.randn(size, 4) for size in example),
            dynamic_shapes={"x": {0: one}, "y": {0: other}},
        )
        for name, (one, other, example) in SIZES.items()
    }


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("the dim", 2, 2),
        ("the dim", 16, 16),
        ("a multiple, and an offset", 4, 3),
        ("a multiple, and an offset", 32, 17),
        ("an offset, and a multiple", 1, 6),
        ("both", 5, 2),
        ("both", 33, 16),
        ("without an upper bound", 4000, 2000),
    ],
)
def test_sizes_that_are_taken(fused: dict[str, Fused], name: str, x: int, y: int) -> None:
    inputs = torch.randn(x, 4), torch.randn(y, 4)
    torch.testing.assert_close(fused[name](*inputs), Two()(*inputs))


@pytest.mark.parametrize(
    ("name", "x", "y", "said"),
    [
        ("the dim", 17, 17, r"input x has size 17 at axis 0, outside s\d+:2..16"),
        ("the dim", 5, 4, r"input y has s\d+=4 at axis 0, but x has 5"),
        ("a multiple, and an offset", 7, 4, "input x has size 7 at axis 0, not a multiple of 2"),
        ("a multiple, and an offset", 2, 2, r"input x has size 2 at axis 0, outside 2\*\(s\d+:2..16\)"),
        ("a multiple, and an offset", 34, 18, r"input x has size 34 at axis 0, outside 2\*\(s\d+:2..16\)"),
        ("a multiple, and an offset", 6, 5, r"input y has s\d+=4 at axis 0, but x has 3"),
        ("an offset, and a multiple", 16, 51, r"input x has size 16 at axis 0, outside s\d+:1..15"),
        ("an offset, and a multiple", 4, 14, r"input y has size 14 at axis 0, not 3\*s\d+\+3"),
        ("an offset, and a multiple", 4, 12, r"input y has s\d+=3 at axis 0, but x has 4"),
        ("both", 8, 4, r"input x has size 8 at axis 0, not 2\*s\d+\+1"),
        ("both", 35, 17, r"input x has size 35 at axis 0, outside 2\*\(s\d+:2..16\)\+1"),
        ("without an upper bound", 2, 1, r"input x has size 2 at axis 0, outside 2\*\(s\d+:2..\)"),
    ],
)
def test_sizes_that_are_refused(fused: dict[str, Fused], name: str, x: int, y: int, said: str) -> None:
    with pytest.raises(ContractError, match=said) as caught:
        fused[name](torch.randn(x, 4), torch.randn(y, 4))
    assert "dynamic_shapes" in caught.value.fix


def test_other_tensors_are_refused(fused: dict[str, Fused]) -> None:
    x = torch.randn(5, 4)
    for other, said in {
        torch.randn(5, 3): "input y has size 3 at axis 1, but the contract says 4",
        torch.randn(5): r"input y has 1 dims \[5\], but the contract says 2",
        x.half(): "input y has dtype f16, but the contract says f32",
        x.to("meta"): "input y is on meta, but the contract says cpu",
    }.items():
        with pytest.raises(ContractError, match=said):
            fused["the dim"](x, other)


class TensorLike:
    """It has what the check reads of a tensor, but the graph cannot compute with it."""

    dtype, device, shape = torch.float32, torch.device("cpu"), torch.Size((5, 4))


def test_what_only_looks_like_a_tensor_is_refused(fused: dict[str, Fused]) -> None:
    with pytest.raises(ContractError, match=r"input y is of type TensorLike, not a torch.Tensor"):
        fused["the dim"](torch.randn(5, 4), TensorLike())


@pytest.mark.parametrize("other", [3, 2.0, True, None, "2"])
def test_another_constant_is_refused(other: object) -> None:
    leaf = pytree.tree_structure(((2,), {}))
    call = CapturedCall((Constant("times", 2),), leaf, (), leaf, "cpu", None)
    call.check([2])
    with pytest.raises(ContractError, match=r"input times is .*, but the contract says 2, which is part of the graph"):
        call.check([other])


def test_a_size_of_two_dims_is_refused() -> None:
    class Sum(nn.Module):
        def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
            return torch.cat([x, y]) + z

    auto = torch.export.Dim.AUTO
    inputs = torch.randn(3, 4), torch.randn(5, 4), torch.randn(8, 4)
    with pytest.raises(UnsupportedError, match="which is not a multiple of a single dim"):
        fuseconv.fuse(Sum(), inputs, dynamic_shapes=({0: auto}, {0: auto}, {0: auto}))
