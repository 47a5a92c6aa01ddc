"""Larger sizes for an export that fails at the example sizes."""

import pytest

from fuseconv.contract.input_text import parse_inputs
from fuseconv.contract.inputs import LARGEST, example_sizes
from fuseconv.contract.spec import Contract
from fuseconv.sizes.larger_sizes import larger_sizes

LARGER = {
    "one dim": ("x=f32[batch:1..64,n:1..512]", ["n"], [{"batch": 3, "n": 41}, {"batch": 3, "n": 321}]),
    "a short dim": ("x=f32[batch:1..64,n:1..30]", ["n"], [{"batch": 3, "n": 30}]),
    "multiples": ("x=f32[n:4..4096:4]", ["n"], [{"n": 100}, {"n": 772}]),
    "no dim": ("x=f32[batch:1..64,n:1..512]", [], []),
    "many elements": ("x=f32[h:1..512,w:1..512,4096]", ["h", "w"], [{"h": 25, "w": 41}]),
    "nothing larger": ("x=f32[n:3..3]", ["n"], []),
}


@pytest.mark.parametrize("name", LARGER)
def test_the_named_dims_are_larger(name: str) -> None:
    text, names, expected = LARGER[name]
    assert [*larger_sizes(Contract(parse_inputs([text]), ()), names)] == expected


def test_no_size_is_far_beyond_what_is_tried_anyway() -> None:
    contract = Contract(parse_inputs(["x=f32[n:500..100000]"]), ())
    assert example_sizes(contract)["n"] < LARGEST
    assert [*larger_sizes(contract, ["n"])] == [{"n": LARGEST + 1}]
