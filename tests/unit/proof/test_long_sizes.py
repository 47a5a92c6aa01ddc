"""Rules that are right only at small sizes: what depends only on sizes is tested at large ones."""

from collections.abc import Sequence

import pytest
import torch
from support import programs
from support.subjects import subject_of
from torch import Tensor, nn

from fuseconv.capture.capture import capture
from fuseconv.proof.checked import checked_plan
from fuseconv.proof.rule_check import check_rules
from fuseconv.rulebook.rule import Rule

POSITIONS = ["x: f64[n, 8]", "n = aten.sym_size.int(x, 0)", "i = aten.arange.default(n)"]
DISTANCES = [
    *POSITIONS,
    "a = aten.unsqueeze.default(i, 1)",
    "b = aten.unsqueeze.default(i, 0)",
    "d = aten.sub.Tensor(a, b)",
]
WINDOW = ["g = aten.gt.Scalar(d, 200)", "l = aten.lt.Scalar(d, 0)", "z = aten.bitwise_or.Tensor(g, l)"]
WRONG = {
    "window": (DISTANCES, WINDOW, ["z = aten.lt.Scalar(d, 0)"]),
    "clamp": (POSITIONS, ["z = aten.clamp.default(i, 0, 100)"], ["z = aten.alias.default(i)"]),
}


def made(name: str, given: Sequence[str], match: Sequence[str], replace: Sequence[str]) -> Rule:
    hit = [*given, *match, f"return {match[-1][0]}"]
    fields = {"name": name, "stage": "fuse", "doc": "For tests.", "match": match, "replace": replace}
    return Rule.model_validate({**fields, "examples": {"hit": [hit]}})


def rule(name: str) -> Rule:
    return made(name, *WRONG[name])


@pytest.mark.parametrize("name", WRONG)
def test_a_rule_that_is_wrong_beyond_its_example_is_found_out(name: str) -> None:
    rows = check_rules([rule(name)])
    assert [row.verdict for row in rows if row.check == "hit 0"] == ["wrong"]
    assert "proved" not in {row.verdict for row in rows}


def test_an_example_that_is_large_itself_is_tried() -> None:
    match = ["y = aten.mul.Tensor(x, 2)"]
    rows = check_rules([made("three", ["x: f64[512, 512]"], match, ["y = aten.add.Tensor(x, x, alpha=2)"])])
    assert [row.verdict for row in rows if row.check in ("hit 0", "variants")] == ["wrong", "wrong"]
    assert all(row.draws for row in rows if row.check in ("hit 0", "variants"))


def test_a_triangle_outside_of_the_example_is_not_proved() -> None:
    match = ["y = aten.triu.default(x, -100)"]
    made = {
        "name": "all",
        "stage": "fuse",
        "doc": "For tests.",
        "match": match,
        "replace": ["y = aten.clone.default(x)"],
    }
    rows = check_rules([Rule.model_validate({**made, "examples": {"hit": [["x: f64[n, 8]", *match, "return y"]]}})])
    assert "proved" not in {row.verdict for row in rows}
    assert not all(row.ok for row in rows)


def test_what_a_byte_does_not_count_is_found_out() -> None:
    place, result = "a = aten.argmax.default(x, -1)", "z = aten.neg.default(a)"
    replace = [place, "b = aten.to.dtype(a, i8)", "c = aten.to.dtype(b, i64)", "z = aten.neg.default(c)"]
    rows = check_rules([made("byte", ["x: f64[n, 8]"], [place, result], replace)])
    assert [row.verdict for row in rows if row.check == "variants"] == ["wrong"]


class Windowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        i = torch.arange(x.shape[1])
        distance = i.unsqueeze(1) - i.unsqueeze(0)
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        return scores.masked_fill((distance > 200) | (distance < 0), float("-inf")).softmax(-1) @ x


def test_a_site_is_tried_at_the_sizes_of_the_contract() -> None:
    program = capture(subject_of(Windowed(), "x=f32[b:1..4,s:2..1024,8]"))
    found = checked_plan(program, [rule("window")], device="cpu", targets=())
    (miss,) = found.rejected
    assert "longest size" in miss.reason
    assert found.steps == ()


def test_many_rows_are_not_shortened_where_the_rows_are_what_is_tried() -> None:
    """16 bits count 32,767 rows."""
    place, result = "a = aten.argmax.default(x, 0)", "z = aten.neg.default(a)"
    replace = [place, "b = aten.to.dtype(a, i16)", "c = aten.to.dtype(b, i64)", "z = aten.neg.default(c)"]
    short = made("short", ["x: f64[n, 8]"], [place, result], replace)
    program = capture(subject_of(programs.Function(lambda _, x: -x.argmax(0)), "x=f32[b:1..100000,8]"))
    found = checked_plan(program, [short], device="cpu", targets=())
    (miss,) = found.rejected
    assert "longest size" in miss.reason


def test_a_rule_is_for_real_tensors() -> None:
    match = ["c = aten.conj.default(x)", "y = aten.mul.Tensor(x, c)"]
    made = {
        "name": "conj",
        "stage": "fuse",
        "doc": "For tests.",
        "match": match,
        "replace": ["y = aten.mul.Tensor(x, x)"],
    }
    squared = Rule.model_validate({**made, "examples": {"hit": [["x: f64[n, 8]", *match, "return y"]]}})
    x = torch.randn(3, 8, dtype=torch.complex64)
    program = programs.capture(programs.Function(lambda _, x: torch.view_as_real(x * torch.conj(x))), x)
    found = checked_plan(program, [squared], device="cpu", targets=())
    assert found.steps == ()
