"""The properties of a target and the interface of its module.

Nothing here imports torch, because help texts list the targets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from fuseconv.program.captured import Program
    from fuseconv.weights.store import Store

Runner: TypeAlias = "Callable[..., tuple[torch.Tensor, ...]]"
"""A function that calls a loaded artifact: it takes positional tensors and returns a tuple of tensors.

If its calls are made one after the other, it has an attribute `turn`, the lock that a call holds.
"""


def turn_of(runner: Runner) -> AbstractContextManager[object]:
    """Returns the lock that each call of a runner holds, or a block without effect if calls may overlap."""
    turn: AbstractContextManager[object] = getattr(runner, "turn", nullcontext())
    return turn


@dataclass(frozen=True)
class TargetSpec:
    """The properties of a target that do not depend on a program.

    Attributes:
        name: the name that users see.
        artifact: the path of the file to load, relative to the bundle.
        preference: the rank of the target. By default, the target with the lowest rank in a bundle is loaded.
        runtime: the runtime that executes the artifact: torch or ONNX Runtime.
        cuda_graphs: whether calls can be captured in CUDA graphs.
        machine_code: whether the artifact runs only on CPUs with the instruction set of the CPU for which it was
            compiled.
        plugin: whether the target requires the op library for ONNX Runtime, which is optional in a build.
        in_place: whether the artifact writes a state into its input where the program permits it: `targets.in_place`.
        varies: why two conversions of one model may write different bytes. Empty if the bytes are always the same.
        usually: how long writing the artifact usually takes, in words. Empty if it takes a few seconds.
        python_only: why the C++ runtime does not support the target. Empty if the C++ runtime supports the target.
    """

    name: str
    artifact: Path
    preference: int
    runtime: Literal["torch", "onnxruntime"] = "torch"
    cuda_graphs: bool = False
    machine_code: bool = False
    plugin: bool = False
    in_place: bool = False
    varies: str = ""
    usually: str = ""
    python_only: str = ""


@dataclass(frozen=True)
class Context:
    """Additional inputs for writing a target.

    Attributes:
        scratch: an existing folder for temporary files, outside the bundle, which the caller removes.
        op_files: the paths of Python files that register ops of the program, which child processes must load.
        store: the store for the weights. None if the artifact must contain its weights.
        artifact: the path of the artifact to write, relative to the bundle. None for the path in the target's spec.
            Only targets of machine code, of which a bundle may contain several packages, support another path.
    """

    scratch: Path
    op_files: tuple[Path, ...] = ()
    store: Store | None = None
    artifact: Path | None = None


class Target(Protocol):
    """The interface of a target's module, which the docstring of the package describes."""

    @property
    def SPEC(self) -> TargetSpec: ...  # noqa: N802, D102

    def check_machine(self, device: str) -> None: ...  # noqa: D102

    def unsupported(self, program: Program) -> str | None: ...  # noqa: D102

    def write(self, program: Program, folder: Path, context: Context) -> Path: ...  # noqa: D102

    def load(self, path: Path, device: str) -> Runner: ...  # noqa: D102
