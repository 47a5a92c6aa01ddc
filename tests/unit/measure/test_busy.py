"""What is said when other processes use the machine, with told clocks."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fuseconv.measure import busy

USED = {
    "nobody else": ((10, 10.5), (2, 2.5), 1.0, None),
    "one other process": ((10, 12), (2, 3), 1.0, "other processes used 1.0 of"),
    "too little to mention": ((10, 11.2), (2, 3), 1.0, None),
    "a clock of ticks that counts less than this process used": ((10, 10), (2, 2.5), 1.0, None),
}


@pytest.mark.parametrize("name", USED)
def test_the_processors_are_used_by_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    every, own, spent, expected = USED[name]
    at = 0
    monkeypatch.setattr(busy, "_seconds_of_all", lambda: every[at])
    monkeypatch.setattr(busy, "_own_seconds", lambda: own[at])
    monkeypatch.setattr(time, "monotonic", lambda: at * spent)
    processors = busy.Processors()
    at = 1
    note = processors.note()
    assert note is None if expected is None else str(note).startswith(expected)


def test_the_time_of_all_processes_leaves_out_idling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  100 20 30 9999 777 4 6 50 0 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(busy, "CPUS", stat)
    assert busy._seconds_of_all() == 160 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("used", "noted"), [(0, False), (4, False), (5, True), (97, True)])
def test_a_gpu_that_is_in_use_is_noted(used: int, noted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "_gpu_used", lambda: used)
    note = busy.gpu_note()
    assert note == (f"the GPU was used to {used} % before the measurement began" if noted else None)
