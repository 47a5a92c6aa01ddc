"""The input syntax, and the check of every call."""

import json
import timeit
from typing import Any

import pytest
import torch
from torch import Tensor

from fuseconv.contract.dims import Dim
from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.errors import ContractError, UsageError

BATCH, SEQ = Dim("batch", 1, 64), Dim("seq", 2, 512)
IDS = TensorSpec("ids", "i64", (BATCH, SEQ))
MASK = TensorSpec("mask", "i64", (BATCH, SEQ))
IMAGE = TensorSpec("image", "f32", (BATCH, 3, 8, 8))
CONTRACT = Contract((IDS, IMAGE), ("y",))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["ids=i64[batch:1..64,seq:2..512]"], (IDS,)),
        (["ids=i64[batch:1..64,seq:2..512]", "mask=i64[batch,seq]"], (IDS, MASK)),
        (["mask=i64[batch,seq]", "ids=i64[ batch:1..64 , seq:2..512 ]"], (MASK, IDS)),
        (["image=f32[batch:1..64,3,8,8]"], (IMAGE,)),
        (["x=bf16[]"], (TensorSpec("x", "bf16", ()),)),
        (["x=bool[7]"], (TensorSpec("x", "bool", (7,)),)),
        (["x=f32[n:0..0]"], (TensorSpec("x", "f32", (Dim("n", 0, 0),)),)),
        (["x=f32[n:8..64:8]"], (TensorSpec("x", "f32", (Dim("n", 8, 64, 8),)),)),
        (["x=f32[n:1..63:8,n]"], (TensorSpec("x", "f32", (Dim("n", 8, 56, 8), Dim("n", 8, 56, 8))),)),
        (["x=f32[n:1..64:1]"], (TensorSpec("x", "f32", (Dim("n", 1, 64),)),)),
    ],
)
def test_parse(texts: list[str], expected: tuple[TensorSpec, ...]) -> None:
    assert parse_inputs(texts) == expected
    assert parse_inputs([str(spec) for spec in expected]) == expected


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["ids"], "cannot be parsed"),
        (["ids=i64"], "cannot be parsed"),
        (["ids=i64[batch"], "cannot be parsed"),
        (["=i64[2]"], "cannot be parsed"),
        (["2x=i64[2]"], "cannot be parsed"),
        (["ids=i64[2]extra"], "cannot be parsed"),
        (["ids=i128[2]"], "unknown dtype i128"),
        (["ids=i64[2,]"], "the dim '' cannot be parsed"),
        (["ids=i64[batch:1..]"], "cannot be parsed"),
        (["ids=i64[batch:-1..4]"], "cannot be parsed"),
        (["ids=i64[" + "9" * 5000 + "]"], "cannot be parsed"),
        (["ids=i64[\uff13]"], "cannot be parsed"),
        (["ids=i64[batch]"], "has no range"),
        (["ids=i64[batch:64..1]"], "range of batch:64..1 is empty"),
        (["ids=i64[batch:1..64]", "x=f32[batch:1..32]"], "two ranges"),
        (["ids=i64[n:8..64:8]", "x=f32[n:8..64:4]"], "two ranges"),
        (["ids=i64[n:9..15:8]"], "there is no multiple of 8 in 9..15"),
        (["ids=i64[n:9..15:0]"], "no multiple of 0"),
        (["ids=i64[n:9..15:]"], "cannot be parsed"),
        (["ids=i64[2]", "ids=i64[3]"], "given twice"),
        (["torch=i64[2]"], "cannot be named torch"),
        (["class=i64[2]"], "cannot be named class"),
    ],
)
def test_parse_refuses(texts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + said.replace("'", ".")) as caught:
        parse_inputs(texts)
    assert caught.value.where.startswith("--input")
    assert caught.value.fix
    assert caught.value.exit_status == 2


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize("batch", [1, 2, 64])
@pytest.mark.parametrize("seq", [2, 512])
def test_bind_accepts_every_way_to_pass(batch: int, seq: int) -> None:
    x, image = ids(batch, seq), torch.zeros(batch, 3, 8, 8)
    for args, kwargs in [((x, image), {}), ((x,), {"image": image}), ((), {"image": image, "ids": x})]:
        bound = CONTRACT.bind(args, kwargs)
        assert bound[0] is x
        assert bound[1] is image


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "takes 2 inputs (ids, image), but the call passes none"),
        ((ids(2, 3),), {}, "the call passes 1 positional"),
        ((ids(2, 3), torch.zeros(2, 3, 8, 8), ids(2, 3)), {}, "the call passes 3 positional"),
        ((ids(2, 3),), {"ids": ids(2, 3)}, "the call passes 1 positional, ids"),
        ((ids(2, 3),), {"picture": torch.zeros(2, 3, 8, 8)}, "the call passes 1 positional, picture"),
        ((ids(2, 3), torch.zeros(2, 3, 8, 8)), {"mask": ids(2, 3)}, "the call passes 2 positional, mask"),
        ((ids(2, 3).int(), torch.zeros(2, 3, 8, 8)), {}, "ids has dtype i32, but the contract says i64"),
        ((ids(2, 3), torch.zeros(2, 3, 8, 8).half()), {}, "image has dtype f16, but the contract says f32"),
        (([[1, 2]], torch.zeros(2, 3, 8, 8)), {}, "ids is of type list, not a torch.Tensor"),
        ((None, torch.zeros(2, 3, 8, 8)), {}, "ids is of type NoneType, not a torch.Tensor"),
        ((ids(2, 3).numpy(), torch.zeros(2, 3, 8, 8)), {}, "ids is of type ndarray, not a torch.Tensor"),
        ((ids(2, 3).to("meta"), torch.zeros(2, 3, 8, 8)), {}, "ids is on meta, but the contract says cpu"),
        ((ids(6), torch.zeros(2, 3, 8, 8)), {}, "ids has 1 dims [6], but the contract says 2"),
        ((ids(2, 3), torch.zeros(2, 4, 8, 8)), {}, "image has size 4 at axis 1, but the contract says 3"),
        ((ids(0, 3), torch.zeros(0, 3, 8, 8)), {}, "ids has size 0 at axis 0, outside batch:1..64"),
        ((ids(65, 3), torch.zeros(65, 3, 8, 8)), {}, "ids has size 65 at axis 0, outside batch:1..64"),
        ((ids(2, 1), torch.zeros(2, 3, 8, 8)), {}, "ids has size 1 at axis 1, outside seq:2..512"),
        ((ids(2, 3), torch.zeros(4, 3, 8, 8)), {}, "image has batch=4 at axis 0, but ids has 2"),
    ],
)
def test_bind_refuses(args: tuple[Any, ...], kwargs: dict[str, Tensor], said: str) -> None:
    with pytest.raises(ContractError) as caught:
        CONTRACT.bind(args, kwargs)
    assert said in caught.value.what
    assert caught.value.fix


def test_bind_refuses_what_is_no_multiple() -> None:
    contract = Contract(parse_inputs(["x=f32[n:8..64:8]"]), ())
    assert contract.bind((torch.zeros(24),), {})
    with pytest.raises(ContractError, match=r"x has size 20 at axis 0, not a multiple of 8") as caught:
        contract.bind((torch.zeros(20),), {})
    assert caught.value.fix == "pass x=f32[n:8..64:8]"


def test_bind_costs_microseconds() -> None:
    contract = Contract((IDS, MASK), ("y",))
    args = (ids(2, 3), ids(2, 3))
    best = min(timeit.repeat(lambda: contract.bind(args, {}), number=1000, repeat=7)) / 1000
    assert best < 50e-6  # about 3 us on an idle machine; the bound only catches another order of magnitude


def test_json_round_trip() -> None:
    contract = Contract((IDS, TensorSpec("x", "f32", (BATCH, 4, Dim("n", 8, 64, 8)), -1.0, 2.5)), ("y", "z"), "cuda")
    assert Contract.from_json(json.loads(json.dumps(contract.to_json()))) == contract


def test_sizes_and_dims() -> None:
    assert CONTRACT.dims() == {"batch": BATCH, "seq": SEQ}
    assert IMAGE.sizes({"batch": 5}) == (5, 3, 8, 8)
