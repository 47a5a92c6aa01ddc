"""The sandboxed process that checks rules, started by `confined`. Jobs arrive on stdin; results are written to stdout.

A job consists of its length in 8 bytes and a pickle from the parent. A result is a line of JSON instead of a pickle,
because malicious code may have run in this process. The first job names the trusted files that register ops. After that
job the process is sandboxed.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fuseconv.errors import FuseconvError, RuleError, bug, is_out_of_memory
from fuseconv.matching.loops import check_loops
from fuseconv.matching.pattern import compile_rule
from fuseconv.program.quiet import quiet_torch
from fuseconv.proof.rule_check import check_examples
from fuseconv.rulebook.packs import load_ops
from fuseconv.rulebook.rule import Rule
from fuseconv.untrusted import confinement

_LENGTH = struct.Struct("<Q")


def main() -> None:
    """Reads jobs from stdin and writes their results to stdout, until stdin is closed."""
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the output of ops must not mix with the results
    torch.set_num_threads(1)
    tempfile.gettempdir()  # finds the directory by writing to it, before writes are forbidden; later imports look it up

    while (job := _job(jobs)) is not None:
        try:
            answer = _answer(*job)
        except FuseconvError as error:
            answer = _told(error)
        except Exception as error:  # noqa: BLE001 - reported to the parent, which cannot catch it
            answer = _told(bug(error))
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _job(jobs: BinaryIO) -> tuple[str, Sequence[Any], int] | None:
    head = jobs.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    kind, subjects, seconds = pickle.loads(jobs.read(_LENGTH.unpack(head)[0]))  # noqa: S301 - of our own parent
    return kind, subjects, seconds


def _answer(kind: str, subjects: Sequence[Any], seconds: int) -> Mapping[str, Any]:
    if kind == "ops":
        _prepare(subjects)
        return {"rows": []}
    confinement.allow_seconds(seconds)
    with quiet_torch():
        if kind == "loops":
            check_loops([compile_rule(rule) for rule in subjects])
            return {"rows": []}
        return {"rows": [asdict(row) for rule in subjects for row in _rows(rule)]}


def _prepare(files: Sequence[Path]) -> None:
    load_ops(files, {"code"})  # the parent has checked that it is trusted
    os.dup2(1, 2)  # later output of ops would be written to a file, which is forbidden
    confinement.confine()


def _rows(rule: Rule) -> Sequence[Any]:
    try:
        return check_examples(rule)
    except Exception as error:
        if isinstance(error, FuseconvError) or not is_out_of_memory(error):
            raise
        what = f"rule {rule.name}: its examples take more than {confinement.MEMORY >> 30} GiB of memory"
        raise RuleError(what, where=rule.locate(""), fix="make the examples smaller") from error


def _told(error: FuseconvError) -> Mapping[str, Any]:
    trace = traceback.format_exc()
    return {"error": type(error).__name__, "what": error.what, "where": error.where, "fix": error.fix, "trace": trace}
