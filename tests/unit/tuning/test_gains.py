"""What a class of matches gains, as the choices of a plan say it."""

from __future__ import annotations

import pytest

from fuseconv.matching.steps import Choice, Plan, Step
from fuseconv.tuning.gains import Gain, gains

FAST, SLOW, UNTIMED = Choice(True, 50, 100, 5), Choice(False, 100, 80, 10), Choice(False, 0, 0, 0)


def step(rule: str, node: str, **choices: Choice) -> Step:
    return Step(rule, "fuse", (node,), ("aten.neg.default",), {}, {"y": node}, (), choices=choices)


STEPS = (
    step("norm", "a", export=FAST, aoti=SLOW),
    step("norm", "b", export=FAST, aoti=SLOW),
    step("norm", "c", export=SLOW),
    step("linear", "d", export=SLOW),
    step("gate", "e", export=UNTIMED),
    step("gate", "f"),
)

FOUND = {
    "one target": (["aoti"], [Gain("norm", "aoti", 2, SLOW)]),
    "classes of one rule, from much to little": (
        ["export"],
        [Gain("norm", "export", 2, FAST), Gain("linear", "export", 1, SLOW), Gain("norm", "export", 1, SLOW)],
    ),
    "a target that was not measured": (["onnx"], []),
}


@pytest.mark.parametrize("name", FOUND)
def test_equal_matches_are_one_class(name: str) -> None:
    targets, expected = FOUND[name]
    assert gains(Plan(STEPS), targets) == expected


@pytest.mark.parametrize(
    ("choice", "speedup", "interval"), [(FAST, 2.0, (1.9, 2.1)), (SLOW, 0.8, (0.7, 0.9))], ids=["fast", "slow"]
)
def test_the_noise_is_that_of_the_difference(choice: Choice, speedup: float, interval: tuple[float, float]) -> None:
    gain = Gain("norm", "export", 1, choice)
    assert gain.speedup == pytest.approx(speedup)
    assert gain.interval == pytest.approx(interval)
    assert gain.to_json()["applied"] == choice.applied
