"""The choice between the forms of a region, with told times in place of a clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fuseconv.errors import FileError, ParityError
from fuseconv.matching.steps import Forms
from fuseconv.measure.pairs import Ratio
from fuseconv.measure.turns import Duel, Times
from fuseconv.searching.extraction import Candidate
from fuseconv.searching.kinds import Kind
from fuseconv.tuning.forms import FormChoice

GIVEN = Candidate(("y = g",), (1.0,), 1_000_000, ())


def form(name: str, size: int = 1_000_000) -> Candidate:
    return Candidate((f"c: constant = aten.t.default({name})", f"y = aten.{name}.default(x)"), (1.0,), size, ())


A, B = form("a"), form("b", 9_000_000)


def write(forms: Forms) -> str:
    name = next(iter(forms.values())).lines[-1][9]
    if name == "w":
        raise ParityError("it differs")
    return name


def ratio(median: float, noise: float) -> Ratio:
    return Ratio(median, median - noise, median + noise)


def choice(us: dict[str, Sequence[float]], noise: float) -> FormChoice[str]:
    """`us` has the times of the model as it is and with each form, at each size."""

    def race(base: str, challengers: Sequence[str]) -> list[Duel]:
        duels = []
        for name in challengers:
            cases = tuple(ratio(one / own, noise) for own, one in zip(us[base], us[name], strict=True))
            mean = ratio(sum(one.median for one in cases) / len(cases), noise)
            duels.append(Duel(mean, {"export": Times(us[base][0], us[name][0], mean)}, cases))
        return duels

    return FormChoice("g", write, race, [{"n": 1}, {"n": 9}][: len(us["g"])])


CHOICES: dict[str, tuple[dict[str, Sequence[float]], float, Candidate | None, str]] = {
    # what: (the times, the noise, the chosen form, words of a note)
    "the faster of two": ({"g": [10], "a": [8], "b": [5]}, 0.01, B, "chosen: y = b(x): 5.0 us, 10.0 us without it"),
    "the more promising of ties": ({"g": [10], "a": [8], "b": [7.9]}, 0.05, A, "y = b(x): 7.9 us"),
    "nothing beyond the noise": ({"g": [10], "a": [9.9], "b": [11]}, 0.05, None, "the difference is within the noise"),
    "memory is told": ({"g": [10], "a": [12], "b": [5]}, 0.01, B, "; +8.0 MB of constants"),
    "no form is faster": ({"g": [10], "a": [12], "b": [13]}, 0.01, None, "y = a(x): 12.0 us, 10.0 us without it"),
    "it depends on the size": (
        {"g": [10, 10], "a": [4, 11], "b": [20, 20]},
        0.01,
        A,
        "share of the time: 0.40 at n=1, 1.10 at n=9; which form is faster depends on the size",
    ),
}


@pytest.mark.parametrize("what", CHOICES)
def test_the_fastest_form_is_chosen(what: str) -> None:
    us, noise, expected, words = CHOICES[what]
    found = choice(us, noise).best({}, Kind("region", 1, GIVEN, (A, B), ""))
    assert found.lines == (expected.lines if expected else ())
    assert any(words in note for note in found.notes)
    assert (found.choices["export"].unfused_us if expected else None) == (10 if expected else None)


def test_a_wrong_form_and_a_limit_are_told_and_the_next_kind_starts_from_the_chosen_one() -> None:
    one = choice({"g": [10], "a": [8]}, 0.01)
    found = one.best({}, Kind("region", 1, GIVEN, (form("w"), A), "9 ops"))
    assert found.notes[:2] == (
        "the search stopped at 9 ops; the forms found before that were tried",
        "y = w(x) was not tried: it differs",
    )
    assert found.lines == A.lines
    assert one.base == "a"
    assert one.best({}, Kind("other", 1, GIVEN, (), "9 ops")).lines == ()


def test_a_file_that_cannot_be_written_ends_the_search() -> None:
    def full(_forms: Forms) -> str:
        raise FileError("the disk is full", where="x", fix="y")

    with pytest.raises(FileError, match="full"):
        FormChoice("g", full, lambda *_: []).best({}, Kind("region", 1, GIVEN, (A,), ""))
