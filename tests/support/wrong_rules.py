"""Wrong rules whose error shows for few values, and similar right ones."""

import re
from collections.abc import Sequence

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
D, E, F = "x: i64[n, 8]", "y: i64[n, 8]", "x: i32[n, 8]"
K, L = "x: bool[n, 8]", "y: bool[n, 8]"
ATTENTION = ["q: f64[n, 2, 5, 8]", "k: f64[n, 2, 7, 8]", "v: f64[n, 2, 7, 8]"]

WRONG_BY_VALUE = {
    # name: (inputs of the example, match, replace, all of whose ops are aten's)
    # What overflows where the original does not.
    "softplus": ([X], "z = softplus.default(x)", "e = exp.default(x); z = log1p.default(e)"),
    "logsumexp": (
        [X],
        "z = logsumexp.default(x, [-1])",
        "e = exp.default(x); s = sum.dim_IntList(e, [-1]); z = log.default(s)",
    ),
    "log_softmax": ([X], "z = log_softmax.int(x, -1)", "s = softmax.int(x, -1); z = log.default(s)"),
    "log_sigmoid": ([X], "z = log_sigmoid.default(x)", "s = sigmoid.default(x); z = log.default(s)"),
    "tanh": (
        [X],
        "z = tanh.default(x)",
        (
            "e = exp.default(x); n = neg.default(x); f = exp.default(n); a = sub.Tensor(e, f); b = add.Tensor(e, f); "
            "z = div.Tensor(a, b)"
        ),
    ),
    "hypot": (
        [X, Y],
        "z = hypot.default(x, y)",
        "a = mul.Tensor(x, x); b = mul.Tensor(y, y); s = add.Tensor(a, b); z = sqrt.default(s)",
    ),
    "hypot_of_infinity_and_nan": (
        [X, Y],
        "a = mul.Tensor(x, x); b = mul.Tensor(y, y); s = add.Tensor(a, b); z = sqrt.default(s)",
        "z = hypot.default(x, y)",
    ),
    "both_minus_infinite": (
        [X, Y],
        "z = logaddexp.default(x, y)",
        (
            "m = maximum.default(x, y); d = sub.Tensor(x, y); n = neg.default(d); i = minimum.default(d, n); "
            "e = exp.default(i); l = log1p.default(e); z = add.Tensor(m, l)"
        ),
    ),
    "infinite_in_both": ([X, Y], "z = eq.Tensor(x, y)", "d = sub.Tensor(x, y); z = eq.Scalar(d, 0)"),
    "infinite_and_minus_infinite": (
        [X, Y],
        "a = isnan.default(x); b = isnan.default(y); z = bitwise_or.Tensor(a, b)",
        "s = add.Tensor(x, y); z = isnan.default(s)",
    ),
    "halves_of_a_product": (
        [X],
        "m = mul.Tensor(x, 128.0); r = round.default(m); z = div.Tensor(r, 128.0)",
        "m = mul.Tensor(x, 128.0); a = add.Tensor(m, 0.5); r = floor.default(a); z = div.Tensor(r, 128.0)",
    ),
    "a_bound_of_a_product": (
        [X],
        "m = mul.Tensor(x, 16.0); z = ge.Scalar(m, 5.0)",
        "m = mul.Tensor(x, 16.0); z = gt.Scalar(m, 5.0)",
    ),
    "rows_beside_a_bound": (
        [X],
        "n = linalg_vector_norm.default(x, 2, [-1], True); c = clamp_min.default(n, 1e-12); z = div.Tensor(x, c)",
        "n = linalg_vector_norm.default(x, 2, [-1], True); c = add.Tensor(n, 1e-12); z = div.Tensor(x, c)",
    ),
    "mean_of_two": (
        ["x: f32[n, 8]", "y: f32[n, 8]"],
        "a = mul.Tensor(x, 0.5); b = mul.Tensor(y, 0.5); z = add.Tensor(a, b)",
        "s = add.Tensor(x, y); z = mul.Tensor(s, 0.5)",
    ),
    "variance_by_squares": (
        [X],
        "z = var.correction(x, [-1], correction=0)",
        (
            "q = mul.Tensor(x, x); a = mean.dim(q, [-1]); m = mean.dim(x, [-1]); b = mul.Tensor(m, m); "
            "z = sub.Tensor(a, b)"
        ),
    ),
    # Halves, zeros, bounds.
    "round": ([X], "z = round.default(x)", "h = add.Tensor(x, 0.5); z = floor.default(h)"),
    "floor": ([X], "z = floor.default(x)", "z = trunc.default(x)"),
    "sign": ([X], "z = sign.default(x)", "a = abs.default(x); z = div.Tensor(x, a)"),
    "division_by_itself": ([X], "z = div.Tensor(x, x)", "z = ones_like.default(x)"),
    "inverse_of_zero": ([X], "z = pow.Tensor_Scalar(x, -1)", "p = add.Tensor(x, 0.0); z = reciprocal.default(p)"),
    "bound": ([X], "z = clamp.default(x, 0, 6)", "z = clamp.default(x, 0, 5.99)"),
    "bound_far_away": ([X], "z = clamp.default(x, -50000.0, 50000.0)", "z = clone.default(x)"),
    "bound_left_out": ([X], "z = hardtanh.default(x, 0, 6)", "z = relu.default(x)"),
    "strictly": ([X], "z = ge.Scalar(x, 2.5)", "z = gt.Scalar(x, 2.5)"),
    "threshold": ([X], "z = threshold.default(x, 20, 0)", "z = relu.default(x)"),
    "scores_clamped": (
        ATTENTION,
        (
            "t = transpose.int(k, -2, -1); m = matmul.default(q, t); l = clamp.default(m, -50000.0, 50000.0); "
            "p = softmax.int(l, -1); z = matmul.default(p, v)"
        ),
        "z = scaled_dot_product_attention.default(q, k, v, None, 0.0, False, scale=1.0)",
    ),
    "exp_of_log": ([X], "l = log.default(x); z = exp.default(l)", "z = clone.default(x)"),
    "root_of_square": ([X], "q = mul.Tensor(x, x); z = sqrt.default(q)", "z = clone.default(x)"),
    "negative_of_absolute": ([X], "a = abs.default(x); z = neg.default(a)", "z = neg.default(x)"),
    # NaN and infinity.
    "maximum_of_nan": ([X, Y], "z = maximum.default(x, y)", "z = fmax.default(x, y)"),
    "minimum_of_nan": ([X, Y], "z = minimum.default(x, y)", "g = lt.Tensor(x, y); z = where.self(g, x, y)"),
    "relu_of_nan": (
        [X],
        "z = relu.default(x)",
        "g = gt.Scalar(x, 0); o = zeros_like.default(x); z = where.self(g, x, o)",
    ),
    "not_greater": ([X, Y], "g = gt.Tensor(x, y); z = logical_not.default(g)", "z = le.Tensor(x, y)"),
    "times_zero": ([X], "z = mul.Tensor(x, 0)", "z = zeros_like.default(x)"),
    "equal_to_itself": ([X], "z = eq.Tensor(x, x)", "z = ones_like.default(x, dtype=bool)"),
    "power_of_a_half": ([X], "z = pow.Tensor_Scalar(x, 0.5)", "z = sqrt.default(x)"),
    "swapped_where": ([K, Y], "z = where.ScalarOther(x, y, 0.5)", "z = masked_fill.Scalar(y, x, 0.5)"),
    # Integers: sign, order, division, the ends of a dtype.
    "absolute_integer": ([D], "z = abs.default(x)", "z = clone.default(x)"),
    "clamped_integer": ([D], "z = clamp.default(x, None, 511)", "z = clone.default(x)"),
    "clamped_integer_by_one_less": ([D], "z = clamp.default(x, None, 511)", "z = clamp.default(x, None, 510)"),
    "greater_by_one": ([D], "z = gt.Scalar(x, 1000)", "z = ge.Scalar(x, 1000)"),
    "floor_division": (
        [D, E],
        "z = div.Tensor_mode(x, y, rounding_mode='floor')",
        "z = div.Tensor_mode(x, y, rounding_mode='trunc')",
    ),
    "remainder": ([D, E], "z = remainder.Tensor(x, y)", "z = fmod.Tensor(x, y)"),
    "halved_again": (
        [F],
        "d = mul.Tensor(x, 2); z = div.Tensor_mode(d, 2, rounding_mode='floor')",
        "z = clone.default(x)",
    ),
    "greater_than_before": (
        [D],
        "p = add.Tensor(x, 1); z = gt.Tensor(p, x)",
        "z = ones_like.default(x, dtype=bool)",
    ),
    "narrowed_on_the_way": (
        [D],
        "n = to.dtype(x, i32); z = to.dtype(n, i64)",
        "z = clone.default(x)",
    ),
    "through_floats": ([D], "f = to.dtype(x, f32); z = to.dtype(f, i64)", "z = clone.default(x)"),
    "difference_of_bytes": (
        ["x: u8[n, 8]", "y: u8[n, 8]"],
        "z = rsub.Tensor(y, x)",
        "a = maximum.default(x, y); b = minimum.default(x, y); z = sub.Tensor(a, b)",
    ),
    "negative_index": (
        ["w: parameter f64[16, 8]", "i: i64[n]"],
        "z = index.Tensor(w, [i])",
        "z = embedding.default(w, i)",
    ),
    "sum_of_bools": ([K, L], "z = add.Tensor(x, y)", "z = logical_xor.default(x, y)"),
    "none_of_bools": ([K], "z = any.dim(x, -1)", "z = all.dim(x, -1)"),
}
RIGHT = {
    # name: as above: near a wrong one, and right; what overflows in the original may be given right
    "softplus": ([X], "e = exp.default(x); z = log1p.default(e)", "z = softplus.default(x)"),
    "logsumexp": (
        [X],
        "e = exp.default(x); s = sum.dim_IntList(e, [-1]); z = log.default(s)",
        "z = logsumexp.default(x, [-1])",
    ),
    "log_softmax": ([X], "s = softmax.int(x, -1); z = log.default(s)", "z = log_softmax.int(x, -1)"),
    "sigmoid": (
        [X],
        "n = neg.default(x); e = exp.default(n); p = add.Tensor(e, 1); z = reciprocal.default(p)",
        "z = sigmoid.default(x)",
    ),
    "root_of_square": ([X], "q = mul.Tensor(x, x); z = sqrt.default(q)", "z = abs.default(x)"),
    "root_of_inverse": ([X], "s = sqrt.default(x); z = reciprocal.default(s)", "z = rsqrt.default(x)"),
    "log_of_exp": ([X], "e = exp.default(x); z = log.default(e)", "z = clone.default(x)"),
    "round_twice": ([X], "r = round.default(x); z = floor.default(r)", "z = round.default(x)"),
    "bound": ([X], "z = hardtanh.default(x, 0, 6)", "z = clamp.default(x, 0, 6)"),
    "relu": ([X], "z = clamp.default(x, 0)", "z = relu.default(x)"),
    "order": ([X, Y], "z = gt.Tensor(x, y)", "z = lt.Tensor(y, x)"),
    "swapped_where": (
        [K, Y],
        "z = where.ScalarOther(x, y, 0.5)",
        "h = logical_not.default(x); z = masked_fill.Scalar(y, h, 0.5)",
    ),
    "absolute_twice": ([D], "a = abs.default(x); z = abs.default(a)", "z = abs.default(x)"),
    "clamped_integer": (
        [D],
        "a = clamp.default(x, 3); z = clamp.default(a, None, 511)",
        "z = clamp.default(x, 3, 511)",
    ),
    "greater": ([D], "z = gt.Scalar(x, 1000)", "z = ge.Scalar(x, 1001)"),
    "doubled": ([F], "z = mul.Tensor(x, 2)", "z = add.Tensor(x, x)"),
    "remainder_twice": (
        [D],
        "r = remainder.Scalar(x, 7); z = remainder.Scalar(r, 7)",
        "z = remainder.Scalar(x, 7)",
    ),
    "bools": (
        [K, L],
        "a = logical_and.default(x, y); z = logical_not.default(a)",
        "a = logical_not.default(x); b = logical_not.default(y); z = logical_or.default(a, b)",
    ),
    "rows": (["w: parameter f64[16, 8]", "i: i64[n]"], "z = embedding.default(w, i)", "z = index.Tensor(w, [i])"),
}

LITERALS = {"eps": "1e-05", "c": "0.25", "dims": "[-1]", "_": "True"}
"""What the examples write where the patterns capture."""


def rule(name: str) -> Rule:
    inputs, match, where, replace = WRONG[name]
    return made(name, inputs, match, where, replace)


def rule_by_value(name: str, inputs: Sequence[str], match: str, replace: str) -> Rule:
    """A rule whose ops are aten's, its lines in one."""
    lines = [[re.sub(" = ", " = aten.", line, count=1) for line in text.split("; ")] for text in (match, replace)]
    floating = [] if any(kind in inputs[0] for kind in (": i", ": u", ": b", "parameter")) else ["is_floating(x)"]
    where = floating if any(one.startswith("x: ") for one in inputs) else []
    if where == [] and inputs[0].startswith("x: "):
        dtype = inputs[0].split()[1].partition("[")[0]
        where = [f"dtype(x) == {dtype}"]
    return made(name, inputs, lines[0], where, lines[1])


def made(name: str, inputs: Sequence[str], match: Sequence[str], where: Sequence[str], replace: Sequence[str]) -> Rule:
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


def _written(line: str) -> str:
    """A pattern's line as a program has it."""
    head, tail = line.split("(", 1)
    words = [word.strip() for word in tail.removesuffix(")").split(", ")]
    return f"{head}({', '.join(LITERALS.get(word, word) for word in words if word != '...')})"
