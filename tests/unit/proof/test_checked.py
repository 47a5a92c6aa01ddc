"""Every match is tested before it is replaced: wrong rules are rejected with the measured error."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from support import programs
from torch import Tensor, nn
from torch.nn import functional

from fuseconv.matching.plan import plan
from fuseconv.matching.rewrite import rewrite
from fuseconv.matching.steps import Plan
from fuseconv.proof import adversarial
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.difference import compare_graphs
from fuseconv.proof.example import example_program
from fuseconv.proof.ledger import Ledger
from fuseconv.proof.replay import replay
from fuseconv.proof.traced import trace
from fuseconv.rulebook.rule import Rule

EVERYWHERE: dict[str, Any] = {"device": "cpu", "targets": ()}
X = torch.zeros(3, 8)
SIGMOID_BY_TANH = [
    "h = aten.mul.Tensor(x, 0.5)",
    "t = aten.tanh.default(h)",
    "s = aten.mul.Tensor(t, 0.5)",
    "y = aten.add.Tensor(s, 0.5)",
]


def rule(name: str, match: Sequence[str], replace: Sequence[str], where: Sequence[str] = (), **more: Any) -> Rule:
    base = {"name": name, "stage": "fuse", "doc": "For tests.", "match": match, "replace": replace}
    return Rule.model_validate({**base, "where": list(where), **more})


def neighbour() -> Rule:
    """A right rule, which matches in every model below."""
    return rule("right", ["e = aten.exp.default(x)", "y = aten.log1p.default(e)"], ["y = aten.softplus.default(x)"])


WRONG = {
    # name: (match, where, replace, the model's function of x and m, words of the reason)
    "scale-off-by-a-thousandth": (
        ["n = aten.neg.default(x)", "y = aten.mul.Tensor(n, c)"],
        ["is_number(c)"],
        ["y = aten.mul.Tensor(x, product_of(c, -1.001))"],
        lambda x, m: -x * 0.35,
        "captured values",
    ),
    "another-axis-of-a-square": (
        ["y = aten.softmax.int(x, -1)"],
        [],
        ["y = aten._softmax.default(x, -2, False)"],
        lambda x, m: (x @ x).softmax(-1),
        "captured values",
    ),
    "mask-dropped": (
        ["a = aten.add.Tensor(s, m)", "y = aten.softmax.int(a, -1)"],
        ["same_shape(s, m)"],
        ["y = aten.softmax.int(s, -1)"],
        lambda x, m: (x + m).softmax(-1),
        "random values, smallest sizes",
    ),
    "nan-swallowed": (
        ["y = aten.relu.default(x)"],
        [],
        ["r = aten.clamp_min.default(x, 0)", "y = aten.nan_to_num.default(r, 0.0, inf, -inf)"],
        lambda x, m: torch.relu(x),
        "NaN values",
    ),
    "layout-taken-for-granted": (
        ["y = aten.relu.default(x)"],
        [],
        ["v = aten.as_strided.default(x, [8, 8], [8, 1])", "y = aten.clamp_min.default(v, 0)"],
        lambda x, m: torch.relu(x),
        "non-contiguous values",
    ),
    "large-values-cut-off": (
        ["y = aten.relu.default(x)"],
        [],
        ["y = aten.clamp.default(x, 0, 6)"],
        lambda x, m: torch.relu(x * 0.125),
        "",
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rule_is_rejected_at_its_site_and_the_rest_goes_on(name: str, dtype: torch.dtype) -> None:
    match, where, replace, function, words = WRONG[name]

    def forward(module: Any, x: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        return function(x, m), torch.exp(x).log1p()

    inputs = (torch.randn(8, 8, generator=torch.Generator().manual_seed(1)).to(dtype), torch.zeros(8, 8, dtype=dtype))
    program = programs.capture(programs.Function(forward), *inputs, dims=({}, {}))
    found = checked_plan(program, [rule(name, match, replace, where), neighbour()], **EVERYWHERE)
    if (name, dtype) == ("scale-off-by-a-thousandth", torch.bfloat16):
        assert found.counts() == {name: 1, "right": 1}  # a thousandth is less than bf16 can tell
        return
    assert found.counts() == {"right": 1}
    (miss,) = found.rejected
    assert (miss.rule, miss.rejected) == (name, True)
    assert "differs" in miss.reason
    assert words in miss.reason
    assert Plan.from_json(found.to_json()).rejected == found.rejected
    for actual, expected in zip(programs.run(rewrite(program, found)), programs.run(program), strict=True):
        torch.testing.assert_close(actual, expected)


def test_a_site_that_lost_to_a_rejected_one_gets_its_turn() -> None:
    lines = [
        "x: f64[n, 8]",
        "a = aten.neg.default(x)",
        "b = aten.exp.default(a)",
        "y = aten.relu.default(b)",
        "return y",
    ]
    wrong = rule(
        "wrong",
        ["a = aten.neg.default(x)", "b = aten.exp.default(a)", "y = aten.relu.default(b)"],
        ["y = aten.exp.default(x)"],
    )
    right = rule("right", ["b = aten.exp.default(a)", "y = aten.relu.default(b)"], ["y = aten.exp.default(a)"])
    found = checked_plan(example_program(lines), [wrong, right], **EVERYWHERE)
    assert found.counts() == {"right": 1}
    assert [miss.rule for miss in found.rejected] == ["wrong"]


def test_a_wrong_canonical_rule_is_rejected_at_every_match() -> None:
    wrong = rule("wrong", ["y = aten.silu.default(x)"], ["y = aten.mish.default(x)"], stage="canonical")
    program = programs.capture(nn.Sequential(*[nn.SiLU() for _ in range(4)]), torch.randn(3, 8), lines=True)
    found = checked_plan(program, [wrong], **EVERYWHERE)
    assert found.steps == ()
    assert len(found.rejected) == 4
    assert all("test_checked" in miss.where or "torch" in miss.where for miss in found.rejected)


@pytest.mark.parametrize("least", [0, 1])
def test_sizes_of_0_are_tried_where_the_program_takes_them(least: int) -> None:
    wrong = rule("wrong", ["y = aten.any.dim(x, 0)"], ["y = aten.amax.default(x, [0])"])
    dims = ({0: torch.export.Dim("n", min=least, max=8)},)
    program = programs.capture(programs.Function(lambda _, x: (x > 0).any(0)), torch.randn(3, 8), dims=dims)
    found = checked_plan(program, [wrong], **EVERYWHERE)
    assert found.counts() == ({"wrong": 1} if least else {})
    assert all("the replacement cannot run: amax()" in miss.reason for miss in found.rejected)
    assert all("random values, sizes 0" in miss.reason for miss in found.rejected)


def test_a_rule_that_changes_numbers_by_consent_is_not_tried() -> None:
    loose = rule("loose", ["y = aten.gelu.default(x)"], ["y = aten.silu.default(x)"], allow="loose")
    program = programs.capture(nn.GELU(), torch.randn(3, 8))
    found = checked_plan(program, [loose], **EVERYWHERE, allow=["loose"])
    assert found.counts() == {"loose": 1}
    assert found.steps[0].trial is None


def test_a_step_has_the_figures_of_its_trial() -> None:
    """Of two equal layers the second is tried on its own values, and shares the random ones with the first."""
    rounds = rule("rounds", ["y = aten.sigmoid.default(x)"], SIGMOID_BY_TANH)
    copies = rule("copies", ["y = aten.neg.default(x)"], ["y = aten.mul.Tensor(x, -1)"])
    model = programs.Function(lambda _, x: (-x.sigmoid()).sigmoid())
    found = checked_plan(programs.capture(model, torch.randn(64, 8)), [rounds, copies], **EVERYWHERE)
    first, second = (step.trial for step in found.steps if step.rule == "rounds")
    (exact,) = (step.trial for step in found.steps if step.rule == "copies")
    assert first is not None
    assert second is not None
    assert exact is not None
    assert (exact.equal, exact.rmse, exact.rmse_matched) == (True, None, None)
    assert not first.equal
    assert first.rmse is not None
    assert first.rmse_matched is not None
    assert 0 < first.rmse_matched < 1e-7
    assert first.rmse_matched / 4 < first.rmse < 4 * first.rmse_matched
    assert first.rmse != second.rmse
    assert first.draws == second.draws > 5
    assert Plan.from_json(found.to_json()).steps[0].trial == found.steps[0].trial
    assert all(step.trial is None for step in plan(programs.capture(model, X), [rounds], **EVERYWHERE).steps)


def test_a_replacement_that_rounds_less_stays() -> None:
    """In f16 the original overflows on the captured values; the replacement does not."""
    less = rule(
        "less", ["a = aten.mul.Tensor(x, 256)", "y = aten.mul.Tensor(a, 0.0078125)"], ["y = aten.mul.Tensor(x, 2)"]
    )
    program = programs.capture(
        programs.Function(lambda _, x: x * 256 * 0.0078125), torch.tensor([[1000.0], [3.0]], dtype=torch.float16)
    )
    assert checked_plan(program, [less], **EVERYWHERE).counts() == {"less": 1}


def written_in_place(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    y.mul_(2)
    y = y.relu_()
    return y, (x * 3).add_(x)


def filled_piece_by_piece(x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal attention on keys that are assembled in memory of their own, as DeepSeek-V3's are."""
    keys = x.new_empty(x.shape)
    keys[..., :2] = x[..., 1:2]
    keys[..., 2:] = x[..., :4] * 3
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    return functional.scaled_dot_product_attention(x, keys, x + 1, mask), keys.relu()


def repeated(x: Tensor) -> tuple[Tensor, ...]:
    """Duplicates on duplicates, of which the inner ones go on after the outer, and are read in between."""
    first = x.exp().sin() * x
    second = x.exp().sin() + x
    return first, second, x.exp().sin() * x.exp()


def repeated_and_returned(x: Tensor) -> tuple[Tensor, ...]:
    """Both of the inner ones are returned, and stay two: what is computed of each is computed twice."""
    first, second = x.exp(), x.exp()
    return first, second, first.sin() * 2, second.sin() * 3


MODELS = {
    "filled": lambda: programs.capture(
        programs.Function(lambda _, x: filled_piece_by_piece(x)), torch.randn(2, 4, 8, 6)
    ),
    "repeated": lambda: programs.capture(programs.Function(lambda _, x: repeated(x)), torch.randn(3, 8)),
    "in place": lambda: programs.capture(programs.Function(lambda _, x: written_in_place(x)), torch.randn(3, 8)),
    "bert": programs.bert,
    "vit": programs.vit,
    "resnet": programs.resnet,
}


@pytest.mark.parametrize("name", MODELS)
def test_right_rules_stay(name: str, default_rules: tuple[Rule, ...]) -> None:
    program = MODELS[name]()
    given = [tensor.clone() for tensor in program.examples]
    state = {name: tensor.clone() for name, tensor in program.exported.state_dict.items()}
    found = checked_plan(program, default_rules, **EVERYWHERE)
    assert found == plan(program, default_rules, **EVERYWHERE)
    assert found.steps
    assert found.rejected == ()
    for before, after in zip(given, program.examples, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0)
    for name, tensor in program.exported.state_dict.items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)


def test_what_is_computed_of_values_that_stay_two_stays(default_rules: tuple[Rule, ...]) -> None:
    program = programs.capture(programs.Function(lambda _, x: repeated_and_returned(x)), torch.randn(3, 8))
    found = checked_plan(program, default_rules, **EVERYWHERE)
    assert (found.steps, found.rejected) == ((), ())


def test_a_match_that_mutates_in_place_is_tested_on_its_operands(default_rules: tuple[Rule, ...]) -> None:
    """The model's values there: the recorded copy of the match does not mutate them as well."""
    program = MODELS["in place"]()
    (x,) = program.examples
    ledger = Ledger(program)
    excerpts = [ledger.execute(step) for step in plan(program, default_rules, **EVERYWHERE).steps]
    values = [operands for excerpt, operands in replay(program, ledger, excerpts) if excerpt.step.rule == "in-place"]
    assert torch.equal(values[0][0], x + 1)
    assert torch.equal(values[1][0], (x + 1) * 2)


def test_a_constant_of_a_constant_of_the_first_op_is_computed_before_it() -> None:
    """The second rule folds what the first made of the weight of the first op of the program."""
    first = rule(
        "laid-out",
        ["y = aten.linear.default(x, w, b)"],
        ["t: constant = aten.t.default(w)", "y = aten.addmm.default(b, x, t)"],
        ["is_parameter(w)"],
        stage="structure",
    )
    second = rule(
        "folded",
        ["y = aten.addmm.default(b, x, t)"],
        [
            "h = aten.mul.Tensor(x, 0.5)",
            "d: constant = aten.add.Tensor(t, t)",
            "p = aten.mm.default(h, d)",
            "y = aten.add.Tensor(p, b)",
        ],
        ["is_parameter(t)"],
    )
    found = checked_plan(programs.capture(nn.Linear(8, 4), torch.randn(3, 8)), [first, second], **EVERYWHERE)
    assert found.counts() == {"laid-out": 1, "folded": 1}


def test_sites_alike_are_tried_once_on_drawn_values(
    monkeypatch: pytest.MonkeyPatch, default_rules: tuple[Rule, ...]
) -> None:
    drawn = []

    def draws(*given: Any) -> Iterator[list[Any]]:
        drawn.append(given)
        return adversarial.draws(*given)

    monkeypatch.setattr("fuseconv.proof.checked.draws", draws)
    counts = []
    for layers in (1, 5):
        drawn.clear()
        checked_plan(programs.bert(layers), default_rules, **EVERYWHERE)
        counts.append(len(drawn))
    # What follows the embeddings differs from what follows a layer; from the second layer on all are alike.
    assert counts[1] <= counts[0] + 3 * len(adversarial.HARD)


LONG_INPUT = (64, 8192)
FLAT = ["v = aten.reshape.default(x, [524288])", "r = aten.clamp_min.default(v, 0)"]


@pytest.mark.parametrize(
    ("replace", "applied", "tried"),
    [
        (["y = aten.clamp_min.default(x, 0)"], 1, {4}),
        ([*FLAT, "y = aten.reshape.default(r, [64, 8192])"], 1, {4, 64}),  # right with 64 rows alone
        (["r = aten.clamp_min.default(x, 0)", "y = aten.nan_to_num.default(r, 0.0, inf, -inf)"], 0, {4, 64}),
    ],
    ids=["right", "right-at-its-rows", "wrong"],
)
def test_large_operands_are_drawn_with_few_rows_first(
    replace: list[str], applied: int, tried: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = set()

    def draws(*given: Any) -> Iterator[list[Any]]:
        for operands in adversarial.draws(*given):
            rows.add(len(operands[0]))
            yield operands

    monkeypatch.setattr("fuseconv.proof.checked.draws", draws)
    program = programs.capture(nn.ReLU(), torch.randn(*LONG_INPUT), dims=({},))
    found = checked_plan(program, [rule("flat", ["y = aten.relu.default(x)"], replace)], **EVERYWHERE)
    assert (len(found.steps), len(found.rejected)) == (applied, 1 - applied)
    assert rows == tried


def test_operands_that_nothing_runs_on_show_nothing(default_rules: tuple[Rule, ...]) -> None:
    del default_rules
    from fuseconv.proof.example import parse_example

    text = parse_example(["w: f64[4, 8]", "i: i64[3]", "y = aten.embedding.default(w, i)", "return y"])
    graph = trace(text, {}).graph
    out_of_range = [torch.randn(4, 8, dtype=torch.float64), torch.tensor([1, 2, 9])]
    found = compare_graphs(graph, graph, out_of_range, ordinary=True)
    assert (found.difference, found.ran) == ("", False)
