"""Ctrl-C while AOTInductor's compiler runs: the command ends at once, without a bundle and without a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch

from fuseconv import cli

COMPILER = """#!/bin/sh
case "$*" in *probe.so*) exit 1 ;; esac
sleep 600 &
echo $! > "{number}.partial"
mv "{number}.partial" "{number}"
wait
"""
"""A compiler that does not end within the test. `probe.so` is what fuseconv links first, to look at the compiler."""


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2)


def processes_with(mark: str) -> list[str]:
    """The command lines of the processes that have this text in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


@pytest.mark.compiles
def test_a_conversion_is_interrupted_while_the_compiler_runs(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Scale(), (torch.ones(2, 3),)), tmp_path / "scale.pt2")
    number, compiler, mark = tmp_path / "number", tmp_path / "compiler", f"MARK={uuid.uuid4()}"
    compiler.write_text(COMPILER.format(number=number))
    compiler.chmod(0o755)
    before = {*tmp_path.iterdir(), number, tmp_path / "cache"}
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "fuseconv", "convert", str(tmp_path / "scale.pt2"), "--target", "aoti"],
        env={**os.environ, "CXX": str(compiler), **cache, **dict([mark.split("=")])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as process:
        while not number.exists():
            assert process.poll() is None, process.stderr and process.stderr.read()
            time.sleep(0.05)
        assert len(processes_with(mark)) > 2
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, err = process.communicate(timeout=60)  # the compiler would take 600 s
    assert process.returncode == cli.INTERRUPTED
    assert err.endswith("error: interrupted\n  fix: run the command again\n")
    assert set(tmp_path.iterdir()) <= before
    end = time.monotonic() + 60
    while left := processes_with(mark):  # what was killed may still be ending
        assert time.monotonic() < end, left
        time.sleep(0.05)
