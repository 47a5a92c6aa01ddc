"""Runs a program through a target: writes the target's artifact, loads the artifact, and calls it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuseconv.errors import UnsupportedError, UpstreamError
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import returning
from fuseconv.runtime.failed_call import message
from fuseconv.targets import TARGETS, Context, Runner


def through(
    target: str, program: Program, inputs: Sequence[torch.Tensor], op_files: tuple[Path, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """Exports a program to a target, runs the artifact on the inputs, and returns the outputs.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: the exporter, compiler or runtime of the target failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = written(target, program, Path(folder), op_files)
        return called(TARGETS[target].load(path, program.contract.device), inputs)


def written(target: str, program: Program, folder: Path, op_files: tuple[Path, ...] = ()) -> Path:
    """Writes a target's artifact of a program and its weights into a folder, and returns the artifact's path.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: the exporter or compiler of the target failed.
    """
    module = TARGETS[target]
    if reason := module.unsupported(program):
        raise UnsupportedError(reason, where=f"the target {target}", fix=f"leave the target {target} out")
    with tempfile.TemporaryDirectory() as scratch:
        return folder / module.write(program, folder, Context(Path(scratch), op_files))


def called(runner: Runner, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Calls a loaded artifact, and returns copies of its outputs, because the artifact may reuse their memory.

    Raises:
        UpstreamError: the runtime of the target failed.
    """
    try:
        with torch.no_grad():
            return tuple(one.clone() for one in runner(*(one.clone() for one in inputs)))
    except (RuntimeError, IndexError, ValueError) as error:
        raise UpstreamError(f"the artifact does not run: {message(error)}") from error


def cut(program: Program, names: Sequence[str]) -> Program:
    """Returns the part of a program that computes the values of the named nodes. These values become the outputs."""
    contract = replace(program.contract, outputs=tuple(names), buckets=None, state=())
    return replace(program, exported=returning(program.exported, names), contract=contract, original=None)
