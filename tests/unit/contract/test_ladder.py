"""The sizes at which a bundle is measured."""

import itertools
import math

import pytest

from fuseconv.contract.buckets import Buckets
from fuseconv.contract.dims import UNBOUNDED, Dim
from fuseconv.contract.ladder import LARGEST, STEP, ladder
from fuseconv.contract.spec import Contract, TensorSpec


def contract(*dims: Dim, buckets: Buckets | None = None) -> Contract:
    return Contract((TensorSpec("x", "f32", (*dims, 8)),), ("y",), "cpu", buckets=buckets)


@pytest.mark.parametrize(
    ("dims", "captured"),
    [
        ([Dim("n", 1, 64)], {"n": 5}),
        ([Dim("n", 0, 1)], {"n": 1}),
        ([Dim("n", 2, UNBOUNDED)], {"n": 2}),
        ([Dim("n", 32, 512, 32)], {"n": 64}),
        ([Dim("batch", 1, 64), Dim("seq", 2, 512)], {"batch": 2, "seq": 16}),
        (
            [Dim("a", 1, 9), Dim("b", 1, UNBOUNDED), Dim("c", 8, 4096, 8), Dim("d", 1, 3)],
            {"a": 2, "b": 3, "c": 16, "d": 3},
        ),
    ],
)
def test_the_ladder_covers_the_ranges_in_small_steps(dims: list[Dim], captured: dict[str, int]) -> None:
    sizes = ladder(contract(*dims), captured)
    assert sizes[0] == captured
    assert all(dim.refusal(one[dim.name]) == "" and one[dim.name] >= 1 for one in sizes for dim in dims)
    products = sorted(math.prod(one.values()) for one in sizes)
    highest = math.prod(dim.max if dim.max < UNBOUNDED else dim.allowed(LARGEST) for dim in dims)
    assert products[0] == math.prod(max(dim.min, 1) for dim in dims)
    assert products[-1] == highest
    assert len(sizes) <= 2 + math.log(highest / products[0], STEP) + 1
    # A neighbor is at most twice as large, where the steps of the dims allow it.
    coarse = max(dim.step for dim in dims) > 1
    assert coarse or all(large <= 2 * small for small, large in itertools.pairwise(products))


def test_any_beginning_is_spread_over_the_range() -> None:
    sizes = [one["n"] for one in ladder(contract(Dim("n", 1, 1024)), {"n": 7})]
    assert sizes[:3] == [7, 1, 1024]
    assert 16 <= sizes[3] <= 64


def test_a_static_contract_has_one_call_and_buckets_are_rungs() -> None:
    assert ladder(contract(), {}) == [{}]
    found = ladder(contract(Dim("n", 1, 64), buckets=Buckets("n", (1, 8, 32))), {"n": 5})
    assert sorted(one["n"] for one in found) == [1, 5, 8, 32]


def test_many_dims_grow_together() -> None:
    dims = [Dim(f"d{at}", 1, 64) for at in range(24)]
    found = ladder(contract(*dims), {dim.name: 5 for dim in dims})
    assert 8 <= len(found) <= 66
    assert all(len(set(one.values())) == 1 for one in found)
    assert {min(one.values()) for one in found} >= {1, 64}
