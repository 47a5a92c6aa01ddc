"""A command that does not end by itself is killed with every process that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuseconv.bundle.manifest import open_bundle
from fuseconv.errors import UpstreamError
from fuseconv.processes.group import run_in_group
from fuseconv.runtime import tactics

STARTS_ANOTHER = "import subprocess, sys; other = subprocess.Popen(['sleep', '1000'])"


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def run(code: str, seconds: float, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_in_group([sys.executable, "-c", code], seconds=seconds, environment=os.environ, folder=folder)


def test_what_a_command_wrote(tmp_path: Path) -> None:
    done = run("import os, sys; print(os.getcwd()); print('said', file=sys.stderr); sys.exit(3)", 60, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path}\n", "said\n")


def test_a_time_out_kills_the_processes_that_the_command_started(tmp_path: Path) -> None:
    told = tmp_path / "told"
    code = f"{STARTS_ANOTHER}; open({str(told)!r}, 'w').write(str(other.pid)); other.wait()"
    with pytest.raises(subprocess.TimeoutExpired):
        run(code, 2, tmp_path)
    other, end = int(told.read_text()), time.monotonic() + 30
    while is_running(other) and time.monotonic() < end:
        time.sleep(0.01)
    assert not is_running(other)


def test_a_measurement_that_does_not_end_is_an_error(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tactics, "TIME_LIMIT", 0.0)
    monkeypatch.setattr(tactics, "has_tactics", lambda manifest, target: target == "torchscript")
    with pytest.raises(UpstreamError, match=r"did not end within 0\.1 s"):
        tactics.measure(bundle, open_bundle(bundle), ["torchscript"], seconds=0.1)


def test_a_measurement_runs_in_a_process_of_its_own(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the op library has no tactics to measure, but the targets are called all the same."""
    monkeypatch.setattr(tactics, "has_tactics", lambda manifest, target: target == "torchscript")
    measured = tactics.measure(bundle, open_bundle(bundle), ["torchscript"], seconds=5)
    assert measured.failures == {}
    assert measured.calls["torchscript"] > 0
