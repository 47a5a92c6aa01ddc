"""An artifact of a target that was compiled for another architecture than the bundle's first artifact of this target.

Nothing here imports torch.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from fuseconv.bundle.environment import Environment
from fuseconv.bundle.sealed_text import Strict


class Package(Strict):
    """An artifact that contains machine code, and the machine on which it was compiled and verified.

    Attributes:
        target: the name of the target.
        path: the path of the artifact, relative to the bundle: `aoti-x86_64-avx2/model.pt2`.
        environment: the machine and the software versions with which the artifact was compiled.
        parity: one row per case and output, as they were measured on that machine.
    """

    target: str
    path: str
    environment: Environment
    parity: list[dict[str, JsonValue]]


def package_path(artifact: Path, architecture: str) -> Path:
    """Returns the path of a package: its target's artifact, in a folder whose name has the architecture added."""
    return artifact.parent.with_name(f"{artifact.parent.name}-{architecture}") / artifact.name
