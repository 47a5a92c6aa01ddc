"""Reads a model from disk, captures it, and places it on its device."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from fuseconv import sources
from fuseconv.capture.capture import capture
from fuseconv.pipeline.assembly import Progress
from fuseconv.program.captured import Program
from fuseconv.sources import Options, Subject


def silent(step: str) -> AbstractContextManager[None]:  # noqa: ARG001 - Progress's signature
    """Returns a context manager that does nothing. The default value of `progress`."""
    return nullcontext()


def read_program(
    model: str | Path, options: Options | None = None, progress: Progress = silent
) -> tuple[Subject, Program]:
    """Reads a model on the CPU, and captures its graph on the device that the options name.

    Raises:
        FuseconvError: see `sources.read` and `capture.capture`.
    """
    options = options or Options()
    sources.check_device(options.device)
    with progress("read"):
        subject = sources.read(model, options=replace(options, device="cpu"))
    with progress("capture"):
        return subject, capture(subject, options.device)
