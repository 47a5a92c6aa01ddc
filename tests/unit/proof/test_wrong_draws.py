"""Rules with random numbers: a different distribution is detected."""

from collections.abc import Sequence

import pytest
from support.wrong_rules import X, rule

from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.rule import Rule

SEED = ["e = aten.new_empty.default(x, [1], dtype=i64)", "s = aten.randint_like.default(e, 9223372036854775807)"]
DROPPED = [*SEED, "d = fuseconv.gelu_dropout.default(x, s, 0.1)"]

WRONG_DRAWS = {
    # name: (where dropout(gelu(x), 0.1) stood, words of the counter-example)
    "scaled_by_one_over_p": ([*DROPPED, "y = aten.mul.Tensor(d, 9.0)"], "the result differs at [0, "),
    "scale_missing": ([*DROPPED, "y = aten.mul.Tensor(d, 0.9)"], "the result differs at [0, "),
    "p_and_one_minus_p_exchanged": (
        [*SEED, "y = fuseconv.gelu_dropout.default(x, s, 0.9)"],
        "the result differs at [",
    ),
    "as_many_dropped_as_should_be_kept": (
        [*SEED, "d = fuseconv.gelu_dropout.default(x, s, 0.9)", "y = aten.mul.Tensor(d, 0.1111111111111111)"],
        "the result differs in the dropout rate: ",
    ),
    "not_random": (["y = aten.gelu.default(x)"], "the result differs at [0, 0]"),
    "nothing_dropped": (
        ["g = aten.gelu.default(x)", "y = aten.div.Tensor(g, 0.9)"],
        "the result differs in the dropout rate: 0 of 2560, with a probability of 0.1 each",
    ),
    "everything_dropped": (
        ["y = aten.zeros_like.default(x)"],
        "the result differs in the dropout rate: 2560 of 2560, with a probability of 0.1 each",
    ),
    "gelu_of_another_kind": (
        ["g = aten.gelu.default(x, approximate='tanh')", "y = aten.dropout.default(g, 0.1, True)"],
        "the result differs at [",
    ),
    "dropped_before_gelu": (
        ["g = aten.dropout.default(x, 0.1, True)", "y = aten.gelu.default(g)"],
        "the result differs at [",
    ),
    "one_seed_for_ever": (
        ["s = aten.new_full.default(x, [1], 5, dtype=i64)", "y = fuseconv.gelu_dropout.default(x, s, 0.1)"],
        "the result differs in the dropout mask: of two seeds, 1280 of 1280",
    ),
    "one_mask_for_all_rows": (
        [
            "o = aten.new_ones.default(x, [1, 8])",
            "m = aten.dropout.default(o, 0.1, True)",
            "g = aten.gelu.default(x)",
            "y = aten.mul.Tensor(g, m)",
        ],
        "the result differs in the dropout mask: of neighbours along axis 0, 1024 of 1024",
    ),
    "gradient_lost": (
        ["g = aten.gelu.default(x)", "d = aten.detach.default(g)", "y = aten.dropout.default(d, 0.1, True)"],
        "of the gradients, the result differs at [",
    ),
    "gradient_not_dropped": (
        [
            "g = aten.gelu.default(x)",
            "d = aten.detach.default(g)",
            "r = aten.dropout.default(d, 0.1, True)",
            "n = aten.sub.Tensor(g, d)",
            "y = aten.add.Tensor(r, n)",
        ],
        "of the gradients, the result differs at [",
    ),
}


def dropping(name: str, replace: Sequence[str], draws: str = "any") -> Rule:
    match = ["h = aten.gelu.default(x)", "y = aten.dropout.default(h, 0.1, True)"]
    more = {"match": match, "replace": replace, "draws": draws, "examples": {"hit": [[X, *match, "return y"]]}}
    return Rule.model_validate({"name": name.replace("_", "-"), "stage": "fuse", "doc": "For tests.", **more})


@pytest.mark.parametrize("name", WRONG_DRAWS)
def test_a_rule_that_draws_another_distribution_is_found_out(name: str) -> None:
    replace, words = WRONG_DRAWS[name]
    row = next(row for row in check_rules([dropping(name, replace)]) if row.check == "hit 0")
    assert not row.ok
    assert row.detail.startswith(words), row.detail
    assert row.detail.endswith("as written, random values, x: f64[5, 8]"), row.detail


def test_only_a_rule_that_says_so_may_draw_other_numbers() -> None:
    right = [*SEED, "y = fuseconv.gelu_dropout.default(x, s, 0.1)"]
    assert all(row.ok for row in check_rules([dropping("right", right)]))
    failing = [row for row in check_rules([dropping("unsaid", right, draws="same")]) if not row.ok]
    assert failing
    assert "the result differs at [0, " in failing[0].detail


def test_what_an_example_does_not_show_a_variant_does() -> None:
    """p and 1 - p are one where p is a half."""
    exchanged = "y = fuseconv.gelu_dropout.default(x, s, sum_of(1, product_of(p, -1)))"
    match = ["h = aten.gelu.default(x)", "y = aten.dropout.default(h, p, True)"]
    example = [X, match[0], "y = aten.dropout.default(h, 0.5, True)", "return y"]
    more = {"match": match, "replace": [*SEED, exchanged], "draws": "any", "examples": {"hit": [example]}}
    wrong = Rule.model_validate({"name": "wrong", "stage": "fuse", "doc": "For tests.", **more})
    (failing,) = [row for row in check_rules([wrong]) if not row.ok]
    assert failing.check == "variants"
    assert "differs at" in failing.detail
    assert "p=0.03125 in aten.dropout.default" in failing.detail


def test_other_numbers_may_be_drawn_of_one_dropout_alone() -> None:
    said = rule("constant").model_copy(update={"draws": "any"})
    (failing, *_) = [row for row in check_rules([said]) if not row.ok]
    assert "`draws` needs one result that is computed from one dropout with 0 < p < 1" in failing.detail
