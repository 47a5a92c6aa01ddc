"""Runs a program through any target: writes the artifact, loads it, and calls it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from fuseconv.errors import UnsupportedError
from fuseconv.program.captured import Program
from fuseconv.program.graph_copy import returning
from fuseconv.targets import TARGETS, Context, Runner


def through(
    target: str, program: Program, inputs: Sequence[torch.Tensor], op_files: tuple[Path, ...] = ()
) -> tuple[torch.Tensor, ...]:
    """Writes a program for a target, runs it on the inputs, and returns its outputs.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: the exporter, compiler or runtime of the target failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = written(target, program, Path(folder), op_files)
        return called(TARGETS[target].load(path, program.contract.device), inputs)


def written(target: str, program: Program, folder: Path, op_files: tuple[Path, ...] = ()) -> Path:
    """Writes an artifact with its weights into a folder, and returns its path.

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
    """Calls an artifact, and returns copies of its outputs, because the artifact may reuse its memory."""
    with torch.no_grad():
        return tuple(one.clone() for one in runner(*(one.clone() for one in inputs)))


def cut(program: Program, names: Sequence[str]) -> Program:
    """Returns the part of a program that computes the named values. Its outputs are these values, with their names."""
    contract = replace(program.contract, outputs=tuple(names), buckets=None)
    return replace(program, exported=returning(program.exported, names), contract=contract, original=None)
