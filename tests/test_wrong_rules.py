"""Rules that are wrong in one thing each: the check must find every one out, with a counter-example."""

import pytest

from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.rule import Rule

X, Y = "x: f64[n, 8]", "y: f64[n, 8]"
LINEAR = ["x: f64[n, 8]", "w: parameter f64[8, 8]", "b: parameter f64[8]"]
HEADS = ["q: f64[n, 2, 5, 8]", "k: f64[n, 2, 7, 8]"]
NORM = ["m = aten.mean.dim(q, [-1], True)", "a = aten.add.Tensor(m, eps)", "r = aten.rsqrt.default(a)"]

WRONG = {
    # name: (inputs of the example, match, where, replace)
    "operands_swapped": (
        [X, Y],
        ["d = aten.sub.Tensor(x, y)", "z = aten.relu.default(d)"],
        [],
        ["d = aten.sub.Tensor(y, x)", "z = aten.clamp_min.default(d, 0)"],
    ),
    "constant": ([X], ["z = aten.div.Tensor(x, 8)"], [], ["z = aten.mul.Tensor(x, 0.1249)"]),
    "bias_dropped": (LINEAR, ["z = aten.linear.default(x, w, b)"], [], ["z = fuseconv.linear_act.default(x, w)"]),
    "permutation": (
        ["x: f64[n, 4, 4, 4]", "y: f64[n, 4, 4, 4]"],
        ["t = aten.transpose.int(y, 1, 3)", "z = aten.matmul.default(x, t)"],
        [],
        ["u = aten.transpose.int(y, 1, 2)", "z = aten.matmul.default(x, u)"],
    ),
    "dtype_not_asked": (["x: bool[n, 8]"], ["z = aten.ne.Scalar(x, True)"], [], ["z = aten.logical_not.default(x)"]),
    "size_not_asked": (
        ["x: f64[n, 8]", "y: f64[n, 8]"],
        ["s = aten.add.Tensor(x, y)", "z = aten.sum.dim_IntList(s, [-1])"],
        [],
        ["a = aten.sum.dim_IntList(x, [-1])", "b = aten.sum.dim_IntList(y, [-1])", "z = aten.add.Tensor(a, b)"],
    ),
    "rank_not_asked": (
        ["x: f64[n, 8]"],
        ["s = aten.softmax.int(x, 1)"],
        [],
        ["s = aten._softmax.default(x, -1, False)"],
    ),
    "relu_before_add": (
        [X, Y],
        ["s = aten.add.Tensor(x, y)", "z = aten.relu.default(s)"],
        [],
        ["r = aten.relu.default(x)", "z = aten.add.Tensor(r, y)"],
    ),
    "eps_outside_the_root": (
        [X],
        ["a = aten.add.Tensor(x, eps)", "r = aten.sqrt.default(a)"],
        ["is_number(eps)"],
        ["s = aten.sqrt.default(x)", "r = aten.add.Tensor(s, eps)"],
    ),
    "alpha_ignored": (
        [X, Y],
        ["z = aten.add.Tensor(x, y, ...)"],
        [],
        ["o = aten.neg.default(y)", "z = aten.sub.Tensor(x, o)"],
    ),
    "scale_squared": (
        HEADS,
        [
            "t = aten.transpose.int(k, -2, -1)",
            "m = aten.matmul.default(q, t)",
            "s = aten.mul.Tensor(m, c)",
            "p = aten.softmax.int(s, -1)",
        ],
        ["is_number(c)"],
        ["p = fuseconv.attention_score.default(q, k, None, product_of(c, c))"],
    ),
    "mean_over_another_dim": (
        ["x: f64[n, 8, 8]"],
        ["z = aten.mean.dim(x, [-1])"],
        [],
        ["s = aten.sum.dim_IntList(x, [-2])", "z = aten.div.Tensor(s, 8)"],
    ),
    "mask_negated": (
        [X, "k: bool[n, 8]"],
        ["z = aten.masked_fill.Scalar(x, k, c)"],
        [],
        ["h = aten.logical_not.default(k)", "z = aten.where.ScalarSelf(h, c, x)"],
    ),
    "mask_subtracted": (
        [*HEADS, "g: f64[5, 7]"],
        [
            "t = aten.transpose.int(k, -2, -1)",
            "m = aten.matmul.default(q, t)",
            "a = aten.add.Tensor(m, g)",
            "p = aten.softmax.int(a, -1)",
        ],
        [],
        ["h = aten.neg.default(g)", "p = fuseconv.attention_score.default(q, k, h)"],
    ),
    "keepdim_ignored_in_the_sum": (
        [X],
        ["q = aten.mul.Tensor(x, x)", "z = aten.sum.dim_IntList(q, dims, _)"],
        [],
        ["z = fuseconv.sum_squared.default(x, dims, True)"],
    ),
    "gelu_of_another_kind": (
        LINEAR,
        ["h = aten.linear.default(x, w, b)", "z = aten.gelu.default(h, ...)"],
        ["has_sizes(b, size(w, 0))"],
        ["z = fuseconv.linear_act.default(x, w, b, None, 'gelu')"],
    ),
    "bias_may_broadcast": (
        LINEAR,
        ["h = aten.linear.default(x, w, b)", "z = aten.relu.default(h)"],
        [],
        ["z = fuseconv.linear_act.default(x, w, b, None, 'relu')"],
    ),
    # What no tolerance tells apart, algebra does.
    "bias_scaled_by_almost_one": (
        LINEAR,
        ["z = aten.linear.default(x, w, b)"],
        ["has_sizes(b, size(w, 0))"],
        ["c = aten.mul.Tensor(b, 1.000000001)", "z = fuseconv.linear_act.default(x, w, c)"],
    ),
    "almost_a_sum": (
        [X, Y],
        ["z = aten.add.Tensor(x, y)"],
        ["dtype(x) in f64", "dtype(y) in f64"],
        [
            "n = aten.neg.default(y)",
            "s = aten.sub.Tensor(x, n)",
            "m = aten.mul.Tensor(s, 1099511627777)",
            "z = aten.mul.Tensor(m, 9.094947017729282e-13)",
        ],
    ),
    "almost_the_weight": (
        LINEAR,
        ["h = aten.linear.default(x, w, b)", "z = aten.gelu.default(h)"],
        ["has_sizes(b, size(w, 0))"],
        ["v = aten.mul.Tensor(w, 0.99999999985)", "z = fuseconv.linear_act.default(x, v, b, None, 'gelu')"],
    ),
    "almost_the_norm": (
        [X, "w: parameter f64[8]"],
        ["z = aten.layer_norm.default(x, [8], w, None, 1e-05)"],
        [],
        [
            "v = aten.mul.Tensor(w, 1.000000001)",
            "z, _, _ = aten.native_layer_norm.default(x, [8], v, None, 1e-05)",
        ],
    ),
    "true_of_finite_numbers_only": ([X], ["z = aten.sub.Tensor(x, x)"], [], ["z = aten.zeros_like.default(x)"]),
}
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
        "the result differs in what is dropped: ",
    ),
    "not_random": (["y = aten.gelu.default(x)"], "the result differs at [0, 0]"),
    "nothing_dropped": (
        ["g = aten.gelu.default(x)", "y = aten.div.Tensor(g, 0.9)"],
        "the result differs in what is dropped: 0 of 2560, with a probability of 0.1 each",
    ),
    "everything_dropped": (
        ["y = aten.zeros_like.default(x)"],
        "the result differs in what is dropped: 2560 of 2560, with a probability of 0.1 each",
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
        "the result differs in what is dropped together: of two seeds, 1280 of 1280",
    ),
    "one_mask_for_all_rows": (
        [
            "o = aten.new_ones.default(x, [1, 8])",
            "m = aten.dropout.default(o, 0.1, True)",
            "g = aten.gelu.default(x)",
            "y = aten.mul.Tensor(g, m)",
        ],
        "the result differs in what is dropped together: of neighbours along axis 0, 1024 of 1024",
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
LITERALS = {"eps": "1e-05", "c": "0.25", "dims": "[-1]", "_": "True"}
"""What the examples write where the patterns capture."""


def rule(name):
    inputs, match, where, replace = WRONG[name]
    program = [_written(line) for line in match]
    returned = match[-1].split(" = ")[0]
    return Rule.model_validate(
        {
            "name": name.replace("_", "-"),
            "stage": "fuse",
            "doc": "For tests.",
            "match": match,
            "where": where,
            "replace": replace,
            "examples": {"hit": [[*inputs, *program, f"return {returned}"]]},
        }
    )


def dropping(name, replace, draws="any"):
    match = ["h = aten.gelu.default(x)", "y = aten.dropout.default(h, 0.1, True)"]
    more = {"match": match, "replace": replace, "draws": draws, "examples": {"hit": [[X, *match, "return y"]]}}
    return Rule.model_validate({"name": name.replace("_", "-"), "stage": "fuse", "doc": "For tests.", **more})


def _written(line):
    """A pattern's line as a program has it."""
    head, tail = line.split("(", 1)
    words = [word.strip() for word in tail.removesuffix(")").split(", ")]
    return f"{head}({', '.join(LITERALS.get(word, word) for word in words if word != '...')})"


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_found_out_by_a_counter_example(name):
    failing = [row for row in check_rules([rule(name)]) if not row.ok]
    assert failing, "the wrong rule passes"
    words = " ".join(row.detail for row in failing)
    assert "differs at" in words or "cannot run" in words, words
    assert "values" in words or "modulo" in words, words
    assert "f64[" in words or "bool[" in words or "i64[" in words, words


ONLY_BY_ALGEBRA = ("bias_scaled_by_almost_one", "almost_a_sum", "almost_the_weight", "almost_the_norm")


@pytest.mark.parametrize("name", ONLY_BY_ALGEBRA)
def test_what_is_below_every_tolerance_is_found_by_algebra_alone(name):
    failing = [row for row in check_rules([rule(name)]) if not row.ok]
    assert [row.check for row in failing] == ["algebra"]
    assert "differs at [0, 0]" in failing[0].detail
    assert "modulo 2147483647; as written" in failing[0].detail


@pytest.mark.parametrize("name", WRONG_DRAWS)
def test_a_rule_that_draws_another_distribution_is_found_out(name):
    replace, words = WRONG_DRAWS[name]
    row = next(row for row in check_rules([dropping(name, replace)]) if row.check == "hit 0")
    assert not row.ok
    assert row.detail.startswith(words), row.detail
    assert row.detail.endswith("as written, random values, x: f64[5, 8]"), row.detail


def test_only_a_rule_that_says_so_may_draw_other_numbers():
    right = [*SEED, "y = fuseconv.gelu_dropout.default(x, s, 0.1)"]
    assert all(row.ok for row in check_rules([dropping("right", right)]))
    failing = [row for row in check_rules([dropping("unsaid", right, draws="same")]) if not row.ok]
    assert failing
    assert "the result differs at [0, " in failing[0].detail


def test_what_an_example_does_not_show_a_variant_does():
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


def test_other_numbers_may_be_drawn_of_one_dropout_alone():
    said = rule("constant").model_copy(update={"draws": "any"})
    (failing, *_) = [row for row in check_rules([said]) if not row.ok]
    assert "`draws` is of one dropout with 0 < p < 1" in failing.detail
