"""The fastest target against its peers, with a clock that each call advances by its time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseconv.errors import UpstreamError
from fuseconv.measure import peers
from fuseconv.measure.turns import Call

INPUTS = [(torch.zeros(1),), (torch.zeros(2),)]


class Clock:
    """A call takes its seconds, and every third call of it a little longer."""

    def __init__(self) -> None:
        self.now = 0.0

    def calls(self, seconds: Sequence[float]) -> list[Call]:
        def call(each: float) -> Call:
            made = 0

            def run() -> None:
                nonlocal made
                made += 1
                self.now += each * (1.002 if made % 3 == 0 else 1)

            return run

        return [call(each) for each in seconds]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", lambda: clock.now)
    return clock


JUDGED = {
    "twice as fast": ([0.010, 0.100], [0.020, 0.200], (False, 0.5)),
    "slower by a tenth": ([0.011, 0.110], [0.010, 0.100], (True, 1.1)),
    "slower within the noise": ([0.01002, 0.1002], [0.010, 0.100], (False, 1.002)),
    "slower only on the largest input, by as much as it is faster on the given one": (
        [0.005, 0.200],
        [0.010, 0.100],
        (False, 1.0),
    ),
    "much slower on the largest input": ([0.009, 0.400], [0.010, 0.100], (True, 1.897)),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_loss_beyond_the_noise_counts(name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs, (loses, ratio) = JUDGED[name]
    monkeypatch.setattr(peers, "target_calls", lambda *_: clock.calls(theirs))
    told = peers._versus("export", clock.calls(ours), {"peers": ["aoti"], "unfused": "folder", "seconds": 3.0}, INPUTS)
    (row,) = peers._VERSUS.validate_python(told["versus"])
    assert (row.target, row.peer, row.loses) == ("export", "aoti", loses)
    assert row.ratio.median == pytest.approx(ratio, rel=1e-2)
    assert (row.us, row.peer_us) == pytest.approx((ours[0] * 1e6, theirs[0] * 1e6), rel=1e-2)
    assert row.to_json()["loses"] == loses


def test_the_first_peer_that_fails_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def original(_subject: Any, way: str, _inputs: Any) -> list[Call]:
        if way == "compile":
            raise UpstreamError("no compiler")
        return clock.calls([0.1, 0.1])

    monkeypatch.setattr(peers, "_original", lambda _request: object())
    monkeypatch.setattr(peers, "original_calls", original)
    told = peers._versus(
        "export", clock.calls([0.1, 0.1]), {"peers": ["eager", "compile", "aoti"], "seconds": 3.0}, INPUTS
    )
    assert told == {"failed": "compile", "reason": "no compiler"}


TARGETS = {"a": [0.010, 0.100], "b": [0.020, 0.030], "c": [0.009, 0.100]}


@pytest.mark.parametrize(
    ("names", "expected"), [("abc", "b"), ("ac", "c"), ("a", "a")], ids=["by the mean", "by one", "alone"]
)
def test_the_fastest_target_is_measured(
    names: str, expected: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Manifest:
        targets = dict.fromkeys(names, "")

    monkeypatch.setattr(peers, "read_manifest", lambda _folder: Manifest)
    monkeypatch.setattr(peers, "target_calls", lambda _folder, targets, _inputs: clock.calls(TARGETS[targets[0]]))
    assert peers._fastest(Path("bundle"), INPUTS) == expected
