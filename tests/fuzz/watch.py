"""The watchdog: cases run in child processes, which may crash or hang; that case is then the finding."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import ROOT

from .findings import Finding, Findings

BATCHES = {"models": 400, "rules": 400, "files": 5000}
"""Cases of one child: torch.export keeps some memory of each, and a new child takes its time to begin."""


@dataclass
class Part:
    """One kind of case.

    Attributes:
        name: as `worker` knows it.
        seconds: how long to go on.
        limit: the longest that one case may take.
        most: how many cases at most.
        options: for the worker.
        counts: what was counted.
        cases: how many were tried.
    """

    name: str
    seconds: float
    limit: float
    most: int
    options: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    cases: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, counts: Mapping[str, int]) -> None:
        """Adds what one case counted."""
        with self.lock:
            self.cases += 1
            self.counts.update(counts)


GRACE = 20.0
"""Seconds after the end of the time that the cases under way are given."""


def watch(part: Part, seed: str, findings: Findings, jobs: int = 1) -> None:
    """Tries cases until the time is up; counts are added to the part's, and findings are saved.

    Args:
        part: what to try.
        seed: the case N of it is the same one with any number of jobs.
        findings: where to save them.
        jobs: how many children at a time; of several the first tries every case 0, `jobs`, 2 `jobs`, and so on.
    """
    end = time.monotonic() + part.seconds
    with ThreadPoolExecutor(jobs) as pool:
        done = [pool.submit(_job, part, seed, job, jobs, end, findings) for job in range(jobs)]
        for one in done:
            one.result()


def _job(part: Part, seed: str, job: int, jobs: int, end: float, findings: Findings) -> None:
    at = job
    while at < part.most and time.monotonic() < end:
        batch = range(at, min(at + BATCHES[part.name] * jobs, part.most), jobs)
        at = _child(part, seed, batch, end, findings)


def _child(part: Part, seed: str, batch: range, end: float, findings: Findings) -> int:
    """Tries cases in one child; returns the number of the next case."""
    numbers = [str(batch.start), str(batch.stop), str(batch.step)]
    command = [sys.executable, "-m", "fuzz.worker", part.name, seed, *numbers, json.dumps(part.options)]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    path = findings.folder / f"{part.name}-{batch.start % batch.step}.log"
    with path.open("wb") as log:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=ROOT, env=environment)
        try:
            return _read(child, part, seed, batch, end, findings, path)
        finally:
            child.kill()
            child.wait()


def _read(
    child: subprocess.Popen[bytes], part: Part, seed: str, batch: range, end: float, findings: Findings, log: Path
) -> int:
    assert child.stdout is not None
    at, running, rest = batch.start, False, b""
    while True:
        limit = part.limit if running else 120
        patience = min(limit, max(end + GRACE - time.monotonic(), 0))
        ready, _, _ = select.select([child.stdout], [], [], patience)
        if not ready and patience < limit:
            return at  # the time is up, and this case is not counted
        if not ready:
            said = f"it had not ended after {limit:.0f} s"
            findings.add(Finding(part.name, "hang", f"hang {at}", said, part.options, seed, at))
            part.count({})
            return at + batch.step
        data = os.read(child.stdout.fileno(), 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "start" in said:
                at, running = said["start"], True
                if time.monotonic() > end:
                    return at
                continue
            running = False
            at += batch.step
            part.count(said["counts"])
            for one in said["findings"]:
                findings.add(Finding(part.name, **one, options=part.options, seed=seed, case=said["done"]))
    status = child.wait()
    if running or status != 0:
        tail = log.read_text(errors="replace")[-3000:]
        kind, died = ("fuzzer", "the fuzzer itself failed") if status == 1 else ("crash", "the process died")
        said = f"{died} with status {status}\n{tail}"
        findings.add(Finding(part.name, kind, f"{kind} {status}", said, part.options, seed, at))
        part.count({})
        return at + batch.step
    return at


def rows(parts: Sequence[Part]) -> dict[str, Any]:
    """Returns the counts of all parts as plain JSON values."""
    return {part.name: {"cases": part.cases, "counts": dict(sorted(part.counts.items()))} for part in parts}
