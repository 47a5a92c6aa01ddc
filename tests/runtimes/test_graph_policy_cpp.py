"""The policies of CUDA graphs in C++ give Python's answers, for every sequence of calls that is simulated in Python."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support import ROOT
from support.graph_load import Costs, cycle, new, one, simulate, uniform, zipf

from fuseconv.runtime.graph_payoff import WhenItPays
from fuseconv.runtime.graph_policy import AtFirstSight, Policy, Step

LOADS = {
    "one": one(9000),
    "zipf": zipf(100, 4000),
    "uniform": uniform(1000, 5000),
    "cycle": cycle(9, 2000),
    "new": new(2000),
    "change": zipf(20, 3000) + [key + 20 for key in zipf(20, 3000, 1)],
}
COSTS = [Costs(1.1e-3, 0.45e-3, 4e-3), Costs(25e-6, 43e-6, 400e-6), Costs(300e-6, 295e-6, 1e-3)]


class Told:
    """A policy that writes down what it is told and what it answers, as tests/cpp/policy.cpp reads and prints them."""

    def __init__(self, policy: Policy[int]) -> None:
        self.events: list[str] = []
        self.answers: list[str] = []
        self.rest = 0
        self._policy = policy

    def step(self, key: int, contended: bool) -> Step:
        step = self._policy.step(key, contended)
        self.rest, self._policy.rest = self._policy.rest, 0
        self._tell(f"step {key} {contended:d}", f"{list(Step).index(step)} {self.rest}")
        return step

    def timed(self, key: int, contended: bool, replayed: bool, seconds: float) -> bool:
        answer = self._policy.timed(key, contended, replayed, seconds)
        self._tell(f"timed {key} {contended:d} {replayed:d} {seconds!r}", f"{answer:d}")
        return answer

    def room(self, key: int, size: int) -> tuple[object, ...] | None:
        answer = self._policy.room(key, size)
        self._tell(f"room {key} {size}", "no" if answer is None else " ".join(["yes", *map(str, answer)]))
        return answer

    def captured(self, key: int, size: int, total: int, seconds: float) -> bool:
        answer = self._policy.captured(key, size, total, seconds)
        self._tell(f"captured {key} {size} {total} {seconds!r}", f"{answer:d}")
        return answer

    def _tell(self, event: str, answer: str) -> None:
        self.events.append(event)
        self.answers.append(answer)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy") / "policy"
    runtime = ROOT / "csrc" / "runtime"
    # Sums are rounded as in Python: no fused multiply-add.
    command = ["c++", "-std=c++20", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]
    command += ["-I", f"{runtime}", "-I", f"{runtime}/include", f"{ROOT}/tests/cpp/policy.cpp", "-o", f"{path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.compiles
@pytest.mark.parametrize(("name", "load"), [("1", "one"), *((name, load) for name in ("0", "first") for load in LOADS)])
def test_the_answers_are_pythons(program: Path, name: str, load: str) -> None:
    for memory in (10**9, 70):
        for mixed in (False, True):
            plain: Policy[int] = WhenItPays(8, memory, recurs=name == "1")
            if name == "first":
                plain = AtFirstSight(8, memory)
            told = Told(plain)
            costs = lambda key, mixed=mixed: COSTS[key % 3 if mixed else 0]  # noqa: E731
            simulate(told, LOADS[load], costs, size=10)
            done = subprocess.run(
                [program, "8", f"{memory}", name], input="\n".join(told.events), capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == told.answers
