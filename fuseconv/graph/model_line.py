"""Finds the model's source line in a stack trace. Skips the frames of torch, Python and fuseconv."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch

_PACKAGE = Path(__file__).parents[1]
_NOT_THE_MODEL = (
    str(Path(torch.__file__).parent),
    str(_PACKAGE),
    sysconfig.get_path("stdlib") + "/",
    "<",
)
_CALLERS = frozenset(str(_PACKAGE / name) for name in ("capture/capture.py", "fusing/fuse.py", "program/original.py"))
_MODEL_IN_STDLIB = "site-packages"


def model_line(error: BaseException) -> str | None:
    """Returns the line of the model's source that raised an error, as `file:line in function: code`.

    Returns None if no frame of the traceback belongs to the model.
    """
    return innermost(traceback.extract_tb(error.__traceback__))


def innermost(frames: Iterable[traceback.FrameSummary]) -> str | None:
    """Returns the innermost frame of the model's own code, as `file:line in function: code`.

    Returns None if all frames belong to torch, Python or fuseconv. The frames that called fuseconv are ignored, because
    they are not the model's and the graph of an archive has no source lines.
    """
    for frame in reversed(list(frames)):
        if frame.filename in _CALLERS:
            return None
        ours = not frame.filename.startswith(_NOT_THE_MODEL) or (
            _MODEL_IN_STDLIB in frame.filename and not frame.filename.startswith(_NOT_THE_MODEL[:2])
        )
        if ours and frame.name != "<module>":
            code = f": {frame.line}" if frame.line else ""
            return f"{frame.filename}:{frame.lineno} in {frame.name}{code}"
    return None
