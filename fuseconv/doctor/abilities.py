"""Determines which targets this machine can convert to, and load in Python and C++, and how to enable the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuseconv.errors import FuseconvError, UnsupportedError
from fuseconv.ops import library
from fuseconv.runtime import cpp
from fuseconv.targets import TARGETS, onnx_session

ACTIONS = ("convert", "python", "cpp")


@dataclass(frozen=True)
class Ability:
    """Whether this machine can perform one action on one target.

    Attributes:
        target: the name of the target.
        device: `cpu` or `cuda`.
        action: `convert`, `python` (load in Python) or `cpp` (load in C++).
        lacking: why the action is not possible here, with the fix. None if it is possible.
    """

    target: str
    device: str
    action: str
    lacking: FuseconvError | None

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        reason, fix = ("", "") if self.lacking is None else (self.lacking.what, self.lacking.fix)
        which = {"target": self.target, "device": self.device, "action": self.action}
        return {**which, "ok": self.lacking is None, "reason": reason, "fix": fix}


def abilities() -> Iterator[Ability]:
    """Checks every action for every target, on the CPU and on the GPU if there is one, and yields the results."""
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for target in sorted(TARGETS):
            for action in ACTIONS:
                yield Ability(target, device, action, _lacking(_CHECKS[action], target, device))


def _lacking(check: Callable[[str, str], None], target: str, device: str) -> FuseconvError | None:
    """Runs a check and returns the error that it raises, or None if it passes."""
    try:
        check(target, device)
    except FuseconvError as error:
        return error
    return None


def _convert(target: str, device: str) -> None:
    """Checks that this machine can convert to a target. Raises FuseconvError if not."""
    library.library_paths(device)
    _load(target, device)  # a conversion loads and verifies each artifact right after writing it
    TARGETS[target].check_machine(device)


def _load(target: str, device: str) -> None:
    """Checks that this machine can load a target in Python. Raises FuseconvError if not."""
    if TARGETS[target].SPEC.runtime == "onnxruntime":
        onnx_session.check_installed(device)


def _load_in_cpp(target: str, device: str) -> None:  # noqa: ARG001 - the signature of a check
    """Checks that this machine can load a target in C++. Raises FuseconvError if not."""
    if (error := cpp.unsupported(target)) is not None:
        raise error
    program = cpp.find()
    if program is None:
        cpp.check_buildable()
        raise UnsupportedError(f"{cpp.NAME} is not built", fix=cpp.HOW_TO_BUILD)
    version = cpp.versions(program)[TARGETS[target].SPEC.runtime]
    if version.startswith("-"):
        reason, _, fix = version.removeprefix("- ").partition("; ")
        raise UnsupportedError(f"{program}: {reason}", fix=fix)


_CHECKS: Mapping[str, Callable[[str, str], None]] = {"convert": _convert, "python": _load, "cpp": _load_in_cpp}
