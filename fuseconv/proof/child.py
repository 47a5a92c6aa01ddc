"""Controls a child process that runs `checker`: sends jobs, receives results, and reports crashes. Needs no torch."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fuseconv import errors
from fuseconv.errors import FuseconvError, RuleError, UpstreamError
from fuseconv.processes.forked import forked
from fuseconv.proof.check_row import CheckRow
from fuseconv.rulebook.rule import Rule

SECONDS = 300
"""The CPU time limit of a job in seconds. The wall-clock limit is three times as long."""

START = 300
"""The additional wall-clock time in seconds for the start of the process, which imports packs."""

_PIECE = 1 << 16


class Child:
    """A child process that runs one job at a time and is replaced if it dies.

    Attributes:
        deadline: the time, in seconds of `time.monotonic`, at which the current job exceeds its limit.
    """

    def __init__(self, ops: Sequence[Path] = (), seconds: int = SECONDS) -> None:
        """Starts the process.

        Args:
            ops: the trusted Python files that register ops.
            seconds: the CPU time limit of a job.
        """
        self._seconds = seconds
        self.deadline = 0.0
        self._ops = ops
        self._rules: Sequence[Rule] = ()
        self._start()

    def _start(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the child
        self._heard = b""
        self._owed = 1
        self._process = forked(
            "fuseconv.proof.checker",
            before=["torch._dynamo.source"],  # which imports a thousand other modules
            environment={"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            path=[str(Path(path).absolute()) for path in sys.path],
            folder=str(Path.cwd()),
            stderr=self._said.fileno(),
        )
        self._write("ops", self._ops)

    @property
    def descriptor(self) -> int:
        """The file descriptor to wait on. It becomes readable when a result arrives or the child has died."""
        return self._process.stdout

    def send(self, kind: str, rules: Sequence[Rule]) -> None:
        """Sends a job to the child.

        Args:
            kind: `loops` to check the rules for rewrite cycles, or `examples` to test their examples.
            rules: the rules to check.
        """
        self._rules = rules
        self._owed += 1
        self.deadline = time.monotonic() + 3 * self._seconds + (START if self._owed > 1 else 0)
        self._write(kind, rules)

    def _write(self, kind: str, subjects: Sequence[Any]) -> None:
        job = pickle.dumps((kind, list(subjects), self._seconds))
        left = memoryview(len(job).to_bytes(8, "little") + job)
        try:
            while left:
                left = left[os.write(self._process.stdin, left) :]
        except BrokenPipeError:
            return  # it is dead; `receive` reports the cause

    def receive(self) -> list[CheckRow] | None:
        """Reads the available output. Returns the rows of the job, or None if the job is not complete.

        Raises:
            FuseconvError: the job failed, took too long, or killed the child. A child that died or took too long has
                been replaced.
        """
        if time.monotonic() >= self.deadline:
            self.again()
            raise self._limit(f"take more than {3 * self._seconds} s")
        piece = os.read(self.descriptor, _PIECE)
        if not piece:
            raise self._death()
        *answers, self._heard = (self._heard + piece).split(b"\n")
        for line in answers:
            self._owed -= 1
            answer: dict[str, Any] = json.loads(line)
            if "error" in answer:
                if self._owed:  # the ops failed to load, and the job would run without them
                    self.again()
                told = getattr(errors, answer["error"])(answer["what"], where=answer["where"], fix=answer["fix"])
                raise told from RuntimeError(answer["trace"])
            if not self._owed:
                return [CheckRow(**row) for row in answer["rows"]]
            self.deadline = time.monotonic() + 3 * self._seconds  # the child has started and begins the job
        return None

    def _death(self) -> FuseconvError:
        """Replaces a dead child process by a new process, and returns an error that says why the child died."""
        status = self._process.wait()
        self._said.seek(0)
        last = next(reversed(self._said.read().decode(errors="replace").strip().splitlines()), "")
        self.again()
        if status == -signal.SIGXCPU:
            return self._limit(f"take more than {self._seconds} s of CPU time")
        if status < 0:
            return self._limit(f"crash the process that runs them ({signal.Signals(-status).name})")
        what = f"the process that checks rules exited with status {status}: {last}"
        return UpstreamError(what, where=self._rules[0].locate(""), fix="see `fuseconv doctor`, or free memory")

    def _limit(self, what: str) -> RuleError:
        rule = self._rules[0]
        return RuleError(
            f"rule {rule.name}: its examples {what}", where=rule.locate(""), fix="make the examples smaller"
        )

    def again(self) -> None:
        """Kills the child process and starts a new one."""
        self.end()
        self._start()

    def end(self) -> None:
        """Kills the child process."""
        self._process.close()
        self._said.close()
