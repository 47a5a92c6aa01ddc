"""Ctrl-C that Python drops, as in a finalizer, ends the command at its next step."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

DROPPED = """
import os, signal
from fuseconv.commands.progress import shown
from fuseconv.processes import interrupts
from fuseconv.processes.imports import imports

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

interrupts.remember()
try:
"""


def run(block: str, handler: signal.Handlers) -> subprocess.CompletedProcess[str]:
    code = DROPPED + block + "except KeyboardInterrupt:\n    print('interrupted')\n"
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ("    with imports():\n        Finalized()\n        print('imported')\n", "imported\ninterrupted\n"),
        ("    Finalized()\n    with shown('a step'):\n        print('ran')\n", "interrupted\n"),
    ],
    ids=["an import", "a step"],
)
def test_an_interrupt_that_is_dropped_is_raised_again(block: str, said: str) -> None:
    done = run(block, signal.SIG_DFL)
    assert (done.returncode, done.stdout) == (0, said)
    assert "Exception ignored in" in done.stderr


def test_a_background_job_goes_on() -> None:
    done = run("    with shown('a step'):\n        Finalized()\n        print('ran')\n", signal.SIG_IGN)
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "Exception ignored in" not in done.stderr
