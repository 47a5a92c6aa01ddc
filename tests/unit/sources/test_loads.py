"""A fork reads an archive first, which may crash it; the server that forks lives on, and is replaced where it ends."""

from __future__ import annotations

import os
import signal
import zipfile
from pathlib import Path

import pytest
from support.saved_models import Perceptron, Saved

from fuseconv.errors import UpstreamError
from fuseconv.processes.forked import SERVER
from fuseconv.untrusted import loads
from fuseconv.untrusted.loads import require_loads


@pytest.fixture
def sound(saved: Saved) -> Path:
    return saved[Perceptron, "scripted"]


@pytest.fixture
def crashing(sound: Path, tmp_path: Path) -> Path:
    """A tuple in a tuple, a million deep: torch frees it by as many calls in each other."""
    path = tmp_path / "crashing.pt"
    with zipfile.ZipFile(sound) as archive, zipfile.ZipFile(path, "w") as changed:
        for member in archive.infolist():
            deep = b"\x80\x02)" + b"\x85" * 1_000_000 + b"."
            changed.writestr(member, deep if member.filename.endswith("/data.pkl") else archive.read(member))
    return path


def process() -> int:
    assert SERVER._process is not None
    return SERVER._process.pid


def test_after_a_crash_the_same_process_reads_on(sound: Path, crashing: Path) -> None:
    require_loads(sound)
    before = process()
    for _ in range(2):
        with pytest.raises(UpstreamError, match=r"crashes \(SIGSEGV\)"):
            require_loads(crashing)
        require_loads(sound)
    assert process() == before


def test_a_process_that_has_ended_is_replaced(sound: Path) -> None:
    require_loads(sound)
    before = process()
    os.kill(before, signal.SIGKILL)
    require_loads(sound)
    assert process() != before


def test_what_takes_too_long_is_ended_and_the_next_is_read(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_loads(sound)
    before = process()
    os.kill(before, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(loads, "SECONDS", 1)
        with pytest.raises(UpstreamError, match="takes longer than 1 s"):
            require_loads(sound)
    require_loads(sound)
    assert process() != before


def test_a_fork_has_the_process_of_its_parent(sound: Path) -> None:
    require_loads(sound)
    before = process()
    if (child := os.fork()) == 0:
        require_loads(sound)
        own = process()
        SERVER.end()  # as at its exit
        os._exit(own != before)
    assert os.waitpid(child, 0)[1] == 0
    require_loads(sound)
    assert process() == before
