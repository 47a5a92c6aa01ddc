"""Symbolic sizes of an archive as text."""

from __future__ import annotations

import pytest

from fuseconv.report.expressions import readable, symbol_in

S = "Symbol('s0', positive=True, integer=True)"

SIZES = {
    S: "seq",
    "Symbol('u1', integer=True)": "u1",
    f"Add({S}, Integer(1))": "seq + 1",
    f"Add({S}, Integer(-1))": "seq - 1",
    f"Mul(Integer(2), {S})": "2*seq",
    f"Mul(Integer(2), Add({S}, Integer(3)))": "2*(seq + 3)",
    f"FloorDiv({S}, Integer(2))": "seq//2",
    f"Max(Integer(1), {S})": "Max(1, seq)",
    "Integer(7)": "7",
}


@pytest.mark.parametrize("text", SIZES)
def test_sizes_are_arithmetic(text: str) -> None:
    assert readable(text, {"s0": "seq"}) == SIZES[text]


def test_a_dim_with_a_step_is_not_its_quotient() -> None:
    assert readable(f"Mul(Integer(16), {S})", {"s0": "seq/16"}) == "seq"
    assert readable(f"Mul(Integer(4), {S})", {"s0": "seq/16"}) == "4*seq/16"


@pytest.mark.parametrize("text", ["", "1 +", "x" * 20_000, "import os"])
def test_what_is_no_expression_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="a size"):
        readable(text, {})


def test_the_symbol_of_a_size() -> None:
    assert symbol_in(f"Mul(Integer(16), {S})") == "s0"
    assert symbol_in("Integer(7)") == ""
