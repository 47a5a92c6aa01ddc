"""Runs a program through a target: writes it, loads the artifact, and calls it. The same for every target."""

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
    """Returns what a target computes for a call of a program.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: its exporter, compiler or runtime failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = written(target, program, Path(folder), op_files)
        return called(TARGETS[target].load(path, program.contract.device), inputs)


def written(target: str, program: Program, folder: Path, op_files: tuple[Path, ...] = ()) -> Path:
    """Writes the artifact of a target into a folder, with its weights, and returns its path.

    Raises:
        UnsupportedError: the target cannot express the program.
        UpstreamError: its exporter or compiler failed.
    """
    module = TARGETS[target]
    if reason := module.unsupported(program):
        raise UnsupportedError(reason, where=f"the target {target}", fix=f"leave the target {target} out")
    with tempfile.TemporaryDirectory() as scratch:
        return folder / module.write(program, folder, Context(Path(scratch), op_files))


def called(runner: Runner, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Calls an artifact. Its outputs are copied out of its memory."""
    with torch.no_grad():
        return tuple(one.clone() for one in runner(*(one.clone() for one in inputs)))


def cut(program: Program, names: Sequence[str]) -> Program:
    """Returns the part of a program that computes some of its values, and returns them under their names."""
    contract = replace(program.contract, outputs=tuple(names), buckets=None)
    return replace(program, exported=returning(program.exported, names), contract=contract, original=None)
