"""The values that are tested: by dtype, by the ops that use them, and by what the original accepts."""

from __future__ import annotations

import pytest
import torch
from support import small_bundle
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.contract.inputs import draw
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import Kind, kinds_for
from fuseconv.parity.cases import Case, cases
from fuseconv.parity.reference import refer, untried_of
from fuseconv.program.captured import Program

FLOATS = ("f64", "f32", "f16", "bf16", "c64", "c128")


def drawn(dtype: str, kind: Kind, shape: tuple[int, ...] = (16, 3), **bounds: float) -> Tensor:
    contract = Contract((TensorSpec("x", dtype, shape, **bounds),), ())
    (tensor,) = draw(contract, {}, seed=0, kind=kind)
    assert contract.bind((tensor,), {}) == (tensor,)
    return torch.view_as_real(tensor)[..., 0] if tensor.is_complex() else tensor


@pytest.mark.parametrize("shape", [(16, 3), (3, 5, 4), (1, 3, 8, 8), (2, 7)])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_have_nan_infinities_and_the_ends_of_their_range(dtype: str, shape: tuple[int, ...]) -> None:
    nan, infinite, extreme = (drawn(dtype, kind, shape) for kind in ("NaN", "infinities", "extremes"))
    assert 0 < nan.isnan().sum() <= nan.numel() / 4
    assert not nan.isinf().any()
    assert infinite.isposinf().any()
    assert not infinite.isnan().any()
    assert extreme.isfinite().all()
    assert extreme.max() == torch.finfo(extreme.dtype).max
    if extreme.shape[0] >= 7:
        info = torch.finfo(extreme.dtype)
        assert infinite.isneginf().any()
        assert {info.min, info.tiny, -info.tiny, info.tiny * info.eps} <= {*extreme.double().flatten().tolist()}
        assert (extreme.eq(0) & extreme.signbit()).any()


@pytest.mark.parametrize("kind", ["NaN", "infinities", "extremes"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (4, 0), (1, 1)])
def test_any_shape_is_drawn(shape: tuple[int, ...], kind: Kind) -> None:
    assert drawn("f32", kind, shape).shape == shape


@pytest.mark.parametrize("kind", ["NaN", "infinities", "extremes", "zeros and large"])
def test_a_range_that_was_given_is_kept(kind: Kind) -> None:
    x = drawn("f32", kind, low=-2.0, high=-1.0)
    assert x.min() >= -2
    assert x.max() <= -1


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_of_no_known_range_are_the_ends_of_their_dtype(dtype: str) -> None:
    x = drawn(dtype, "integers")
    info = torch.iinfo(x.dtype)
    assert {info.min, info.max, 0, 1} <= {*x.flatten().tolist()}
    assert info.min == 0 or x.lt(0).any()


def test_integers_of_a_known_range_are_spread_over_it() -> None:
    x = drawn("i64", "indices", low=0, high=31999)
    assert x.min() == 0
    assert x.max() == 31999
    assert x.flatten().sort().values.diff().max() < 2 * 32000 / x.numel()


@pytest.mark.parametrize(
    ("specs", "kinds"),
    [
        ([("f32", None)], {"NaN", "infinities", "extremes"}),
        ([("f32", 1)], set()),
        ([("i64", None)], {"integers"}),
        ([("i64", 5)], {"indices"}),
        ([("i64", 5), ("i32", None)], {"indices", "integers"}),
        ([("bool", None)], {"all true", "all false"}),
    ],
)
def test_kinds_are_those_that_concern_the_inputs(specs: list[tuple[str, int | None]], kinds: set[str]) -> None:
    built = tuple(TensorSpec(f"x{at}", dtype, (4,), None, high) for at, (dtype, high) in enumerate(specs))
    assert {*kinds_for(built)} == kinds


class Divides(nn.Module):
    def forward(self, i: Tensor, j: Tensor) -> Tensor:
        return i // j


class Gathers(nn.Module):
    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        return x.gather(1, index)


class Looks(nn.Module):
    """Looks up rows of a table, two below those that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 4)

    def forward(self, i: Tensor) -> Tensor:
        return self.table(i + 2)


class Indexes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(40, 4))

    def forward(self, i: Tensor, j: Tensor, k: Tensor) -> Tensor:
        rows = self.table[i.view(-1)] + self.table.index_select(0, j.reshape(-1))
        return rows + nn.functional.one_hot(k.flatten(), 30)[:, :4]


def found(program: Program) -> dict[str, Case]:
    chosen = cases(program)
    assert refer(program, chosen)
    return {case.name: case for case in chosen}


def test_a_divisor_is_not_drawn_as_0() -> None:
    program = capture(subject_of(Divides(), "i=i64[n:1..9]", "j=i64[n]"))
    assert [(spec.low, spec.high) for spec in program.contract.inputs] == [(None, None), (1, 100)]
    chosen = found(program)
    assert chosen["integers"].inputs[0].lt(-(2**40)).any()
    assert all(case.inputs[1].ge(1).all() for case in chosen.values())


def test_an_index_into_what_has_one_row_is_0() -> None:
    chosen = found(small_bundle.program(Gathers(), ["x=f32[b:1..9,n:1..9]", "index=i64[b,2]"]))
    assert chosen["smallest"].inputs[1].eq(0).all()
    assert chosen["integers"].inputs[1].max() == 1


def test_an_index_is_as_large_as_the_original_takes_it() -> None:
    chosen = found(small_bundle.program(Looks(), ["i=i64[n:1..9]"]))
    assert chosen["integers"].inputs[0].max() == 31
    assert chosen["integers"].inputs[0].min() == 0


def test_ranges_come_from_every_kind_of_table() -> None:
    program = small_bundle.program(Indexes(), ["i=i64[n:1..9]", "j=i32[n]", "k=i64[n]"])
    assert [(spec.low, spec.high) for spec in program.contract.inputs] == [(0, 39), (0, 39), (0, 29)]
    assert found(program)["indices"].inputs[0].max() == 39


class Refuses(nn.Module):
    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        torch._assert_async(x.isfinite().all())
        return x * i


def test_a_case_that_the_original_does_not_take_is_named_with_the_reason() -> None:
    program = small_bundle.program(Refuses(), ["x=f32[n:1..9]", "i=i64[n]"])
    chosen = {case.name: case for case in cases(program)}
    assert "rejects these values" in chosen["NaN"].untried
    assert not chosen["integers"].untried
    assert {*untried_of(refer(program, cases(program)))} == {"NaN", "infinities"}


class Truncates(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.long() + x.to(torch.int32)


class Stores(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x, dtype=torch.int64).copy_(x)


@pytest.mark.parametrize("model", [Truncates, Stores])
def test_what_c_leaves_undefined_is_not_tried(model: type[nn.Module]) -> None:
    chosen = {case.name: case for case in cases(small_bundle.program(model(), ["x=f32[n:1..9]"]))}
    assert all("undefined" in chosen[kind].untried for kind in ("NaN", "infinities", "extremes"))
