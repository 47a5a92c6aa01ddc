"""The choice between fused, partly fused and unfused, with told times in place of a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseconv.errors import UpstreamError
from fuseconv.matching.steps import Plan, Step
from fuseconv.measure.pairs import Ratio
from fuseconv.measure.turns import Duel, Times
from fuseconv.tuning.budget import Budget
from fuseconv.tuning.choosing import Choosing, Chosen, Left
from fuseconv.tuning.classes import Classes

NAMES = ("norm", "gate", "linear")


class Told(Classes):
    """Three classes; `gate` is built on `norm`."""

    def without(self, left: Any) -> Left:
        return frozenset(left) | (frozenset({"gate"}) if "norm" in left else frozenset())


def step(name: str) -> Step:
    return Step(name, "fuse", (name,), ("aten.neg.default",), {}, {"y": name}, ("y = aten.neg.default(x)",))


CLASSES = Told(None, Plan(tuple(map(step, NAMES))), NAMES, dict.fromkeys(NAMES, 1))  # type: ignore[arg-type]


@dataclass
class Machine:
    """Writes and times bundles: `cost` has the microseconds of a model that leaves some classes alone.

    Attributes:
        cost: the time of a model.
        noise: the uncertainty of a ratio.
        fails: whether a model cannot be written.
        seconds: how long writing takes.
        now: the clock.
    """

    cost: Callable[[Left], float]
    noise: float = 0.01
    fails: Callable[[Left], bool] = lambda left: False
    seconds: float = 1.0
    now: float = 0.0
    written: list[Left] = field(default_factory=list)

    def write(self, left: Left) -> Path:
        if self.fails(left):
            raise UpstreamError("it does not run")
        self.now += self.seconds
        self.written.append(left)
        return Path(str(len(self.written)))

    def left(self, folder: Path) -> Left:
        return frozenset() if folder.name == "fused" else self.written[int(folder.name) - 1]

    def race(self, base: Path, challengers: Sequence[Path]) -> list[Duel]:
        self.now += 3
        first = self.cost(self.left(base))
        found = []
        for cost in (self.cost(self.left(one)) for one in challengers):
            ratio = Ratio(cost / first, cost / first - self.noise, cost / first + self.noise)
            found.append(Duel(ratio, {"aoti": Times(first, cost, ratio)}))
        return found


def chosen(machine: Machine, limit: float | None = None, suspects: Left = frozenset()) -> Chosen:
    budget = Budget(limit, lambda: machine.now)
    return Choosing(CLASSES, Path("fused"), machine.write, machine.race, budget, 1.0, suspects).choose()


def saving(saved: Mapping[str, float]) -> Callable[[Left], float]:
    """Returns the cost of a model of 100 us, of which each class that is applied saves some."""
    return lambda left: 100 - sum(us for name, us in saved.items() if name not in left)


CHOICES: Mapping[str, tuple[Machine, float | None, Left]] = {
    "all are faster": (Machine(saving({"norm": 10, "gate": 10, "linear": 10})), None, frozenset()),
    "one is slower": (Machine(saving({"norm": 10, "gate": 10, "linear": -30})), None, frozenset({"linear"})),
    "what is built on a slower one goes with it": (
        Machine(saving({"norm": -30, "gate": 5, "linear": 10})),
        None,
        frozenset({"norm", "gate"}),
    ),
    "one makes no difference": (
        Machine(saving({"norm": 10, "gate": 0, "linear": 10})),
        None,
        frozenset({"gate"}),
    ),
    "none makes a difference": (Machine(saving({})), None, frozenset(NAMES)),
    "each saves less than the noise, all together more": (
        Machine(saving({"norm": 1, "gate": 1, "linear": 1}), noise=0.015),
        None,
        frozenset(),
    ),
    "slower together, no one by itself": (
        Machine(lambda left: 120.0 if len(left) < 2 else 100.0),
        None,
        frozenset(NAMES),
    ),
    "no time but for the unfused model, which is slower": (
        Machine(saving({"norm": 30, "gate": 10, "linear": -5})),
        0.0,
        frozenset(),
    ),
    "no time, the unfused model is faster, and a compilation takes a minute": (
        Machine(saving({"norm": 10, "gate": 10, "linear": -40}), seconds=60),
        0.0,
        frozenset(NAMES),
    ),
    "no time, the unfused model is faster, and writing takes a second": (
        Machine(saving({"norm": 10, "gate": 10, "linear": -40})),
        0.0,
        frozenset({"linear"}),
    ),
    "a model without norms cannot be written": (
        Machine(saving({"norm": -10, "gate": 10, "linear": 30}), fails=lambda left: left == {"norm", "gate"}),
        None,
        frozenset(),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_what_is_not_faster_is_left_alone(name: str) -> None:
    machine, limit, left = CHOICES[name]
    found = chosen(machine, limit)
    assert found.left == left
    speed = found.speeds["aoti"]
    assert speed.us == machine.cost(left)
    assert (speed.fused_us, speed.unfused_us) == (machine.cost(frozenset()), machine.cost(frozenset(NAMES)))
    assert speed.us <= min(speed.fused_us, speed.unfused_us) * (1 + 2 * machine.noise)
    choices = found.choices["aoti"]
    assert {one for one in NAMES if one in choices and not choices[one].applied} == left
    assert machine.left(found.folder) == left
    assert speed.classes == len(NAMES)
    assert (speed.measured == 0) == (limit == 0 and "a second" not in name)
    assert set(found.needed) == ({"norm", "gate"} if "cannot be written" in name else set())


def test_a_choice_has_the_times_that_were_measured() -> None:
    found = chosen(Machine(saving({"norm": 10, "gate": 10, "linear": -30})))
    choice = found.choices["aoti"]["linear"]
    assert (choice.applied, choice.fused_us, choice.unfused_us) == (False, 110, 80)
    assert str(choice) == "110.0 us fused, 80.0 us unfused, noise 1.1 us"
    assert found.slow == {"linear"}


def test_suspects_of_another_target_are_tried_at_once_if_time_is_short() -> None:
    machine = Machine(saving({"norm": 40, "gate": -10, "linear": -10}), seconds=10)
    found = chosen(machine, 30.0, suspects=frozenset({"gate", "linear"}))
    assert found.left == {"gate", "linear"}
    assert machine.written == [frozenset(NAMES), frozenset({"gate", "linear"})]


def test_suspects_are_tried_in_any_case_where_the_fused_model_is_not_faster() -> None:
    machine = Machine(saving({"norm": 10, "gate": 10, "linear": -40}), seconds=60)
    assert chosen(machine, 0.0, suspects=frozenset({"linear"})).left == {"linear"}


def test_an_unfused_model_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(UpstreamError, match="it does not run"):
        chosen(Machine(saving({}), fails=lambda left: len(left) == 3))


@pytest.mark.parametrize(
    ("seconds", "passed", "reserved", "each", "beside", "expected"),
    [(None, 100, 0, 5, 5, None), (30, 0, 0, 5, 5, 5), (30, 12, 0, 5, 5, 2), (30, 0, 20, 5, 5, 1), (30, 60, 0, 5, 5, 0)],
)
def test_a_budget_is_shared(
    seconds: float | None, passed: float, reserved: float, each: float, beside: float, expected: int | None
) -> None:
    now = [0.0]
    budget = Budget(seconds, lambda: now[0], reserved)
    now[0] = passed
    assert budget.affords(each, beside=beside) == expected
