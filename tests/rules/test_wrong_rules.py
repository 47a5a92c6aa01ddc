"""Rules with one error each: the check must detect every one, with a counterexample."""

import pytest
from support.wrong_rules import RIGHT, WRONG, WRONG_BY_VALUE, rule, rule_by_value

from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.rule import Rule


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found_out_by_a_counter_example(name: str) -> None:
    failing = [row for row in check_rules([rule(name)]) if not row.ok]
    assert failing, "the wrong rule passes"
    words = " ".join(row.detail for row in failing)
    assert "differs at" in words or "cannot run" in words, words
    assert "values" in words or "modulo" in words, words
    assert "f64[" in words or "bool[" in words or "i64[" in words, words


@pytest.mark.parametrize("name", WRONG_BY_VALUE)
def test_a_rule_that_is_wrong_for_some_values_is_refused(name: str) -> None:
    failing = [row for row in check_rules([rule_by_value(name, *WRONG_BY_VALUE[name])]) if not row.ok]
    assert failing, "the wrong rule passes"
    assert {row.verdict for row in failing} == {"wrong"}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rule_near_a_wrong_one_passes(name: str) -> None:
    rows = check_rules([rule_by_value(name, *RIGHT[name])])
    assert [row for row in rows if not row.ok] == []
    assert {row.verdict for row in rows} <= {"proved", "tried", "not run"}


ONLY_BY_ALGEBRA = ("bias_scaled_by_almost_one", "almost_a_sum", "almost_the_weight", "almost_the_norm")


@pytest.mark.parametrize("name", ONLY_BY_ALGEBRA)
def test_what_is_below_every_tolerance_is_found_by_algebra_alone(name: str) -> None:
    failing = [row for row in check_rules([rule(name)]) if not row.ok]
    assert [row.check for row in failing] == ["algebra"]
    assert "differs at [0, 0]" in failing[0].detail
    assert "modulo 2147483647; as written" in failing[0].detail


def test_a_function_of_what_no_op_reads_is_refused_when_the_rule_is_read() -> None:
    match = ["y = aten.to.other(x, ...)", "kind = dtype_of(other)"]
    base = {"name": "unread", "stage": "fuse", "doc": "For tests.", "match": match}
    with pytest.raises(ValueError, match="other is not an operand of a matched op"):
        Rule.model_validate({**base, "replace": ["y = aten.to.dtype(x, kind)"]})
