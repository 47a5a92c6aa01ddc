"""The properties of a target and the interface of its module. Does not import torch, because help lists targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from fuseconv.program.captured import Program
    from fuseconv.weights.store import Store

Runner: TypeAlias = "Callable[..., tuple[torch.Tensor, ...]]"
"""A loaded artifact, which takes positional tensors and returns a tuple of tensors."""


@dataclass(frozen=True)
class TargetSpec:
    """The properties of a target that do not depend on a program.

    Attributes:
        name: The name for users.
        artifact: The path in a bundle of the file that is loaded.
        preference: The target of a bundle with the lowest number is loaded by default.
        runtime: The runtime of the artifact.
        cuda_graphs: Whether calls can be captured in CUDA graphs.
        machine_code: Whether it runs only on CPUs with the instruction set of the CPU for which it was compiled.
        plugin: Whether it needs the op library for ONNX Runtime, which is optional in a build.
        varies: Why two conversions of one model may write other bytes. Empty if they write the same.
        python_only: Why the C++ runtime does not support it. Empty if it does.
    """

    name: str
    artifact: Path
    preference: int
    runtime: Literal["torch", "onnxruntime"] = "torch"
    cuda_graphs: bool = False
    machine_code: bool = False
    plugin: bool = False
    varies: str = ""
    python_only: str = ""


@dataclass(frozen=True)
class Context:
    """Additional inputs for writing a target.

    Attributes:
        scratch: an existing folder outside the bundle, which is removed afterwards.
        op_files: Python files that register ops of the program, for child processes.
        store: where the weights go. None for an artifact that contains them.
    """

    scratch: Path
    op_files: tuple[Path, ...] = ()
    store: Store | None = None


class Target(Protocol):
    """The interface of the module of a target, as described in the docstring of the package."""

    @property
    def SPEC(self) -> TargetSpec: ...  # noqa: N802, D102

    def check_machine(self, device: str) -> None: ...  # noqa: D102

    def unsupported(self, program: Program) -> str | None: ...  # noqa: D102

    def write(self, program: Program, folder: Path, context: Context) -> Path: ...  # noqa: D102

    def load(self, path: Path, device: str) -> Runner: ...  # noqa: D102
