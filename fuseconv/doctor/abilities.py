"""What this machine can do with each target: convert to it, load it in Python, load it in C++; and the remedies."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuseconv.errors import FuseconvError, UnsupportedError
from fuseconv.ops import library
from fuseconv.runtime import cpp
from fuseconv.targets import TARGETS, aoti, exported, onnx, onnx_plugin, onnx_session

ACTIONS = ("convert", "python", "cpp")


@dataclass(frozen=True)
class Ability:
    """One action on one target.

    Attributes:
        target: its name.
        device: `cpu` or `cuda`.
        action: `convert` to it, load it in `python`, or in `cpp`.
        lacking: why it cannot be done here, and what to do; None if it can.
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
    """Yields every action on every target, for the CPU and for the GPU where there is one."""
    for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for target in TARGETS:
            for action in ACTIONS:
                yield Ability(target, device, action, _lacking(_CHECKS[action], target, device))


def _lacking(check: Callable[[str, str], None], target: str, device: str) -> FuseconvError | None:
    try:
        check(target, device)
    except FuseconvError as error:
        return error
    return None


def _convert(target: str, device: str) -> None:
    library.library_paths(device)
    _load(target, device)  # an artifact is loaded and proved as soon as it is written
    if target == aoti.NAME and (missing := aoti.missing(device)) is not None:
        raise UnsupportedError(missing, fix="install it, or convert without --target aoti")
    if target in _ONNX and importlib.util.find_spec("onnxscript") is None:
        raise UnsupportedError("onnxscript is not installed", fix="pip install onnxscript")
    if target == onnx_plugin.NAME:
        library.plugin_path(device)


def _load(target: str, device: str) -> None:
    if target in _ONNX:
        onnx_session.check_installed(device)


def _load_in_cpp(target: str, device: str) -> None:  # noqa: ARG001 - the signature of a check
    if target == exported.NAME:
        raise UnsupportedError(
            "torch.export programs can be loaded only in Python", fix="use aoti or torchscript in C++"
        )
    program = cpp.find()
    if program is None:
        cpp.check_buildable()
        raise UnsupportedError(f"{cpp.NAME} is not built", fix=cpp.HOW_TO_BUILD)
    version = cpp.versions(program)["onnxruntime" if target in _ONNX else "torch"]
    if version.startswith("-"):
        reason, _, fix = version.removeprefix("- ").partition("; ")
        raise UnsupportedError(f"{program}: {reason}", fix=fix)


_ONNX = (onnx.NAME, onnx_plugin.NAME)

_CHECKS: Mapping[str, Callable[[str, str], None]] = {"convert": _convert, "python": _load, "cpp": _load_in_cpp}
