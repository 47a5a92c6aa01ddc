"""What a target is, and what its module offers. Read without torch: help lists the targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

    from fuseconv.program.captured import Program

Runner: TypeAlias = "Callable[..., tuple[torch.Tensor, ...]]"
"""A loaded artifact: positional tensors in, a tuple of tensors out."""


@dataclass(frozen=True)
class TargetSpec:
    """What is known of a target without a program.

    Attributes:
        name: What users call it.
        artifact: The file that is loaded, by its path in a bundle.
        preference: Of the targets that a bundle has, the one with the least number is loaded when none is named.
        runtime: What runs the artifact.
        cuda_graphs: Whether its calls can be captured in CUDA graphs.
        machine_code: Whether it runs only on CPUs with the instructions of the one that it was compiled for.
        plugin: Whether it calls our op library for ONNX Runtime, which a build may leave out.
        python_only: Why the C++ runtime does not load it. Empty if it does.
    """

    name: str
    artifact: Path
    preference: int
    runtime: Literal["torch", "onnxruntime"] = "torch"
    cuda_graphs: bool = False
    machine_code: bool = False
    plugin: bool = False
    python_only: str = ""


@dataclass(frozen=True)
class Context:
    """What a target may need besides the program.

    Attributes:
        scratch: an existing folder, outside the bundle, that is removed afterwards.
        op_files: Python files that register ops of the program, for a process that has not run them.
    """

    scratch: Path
    op_files: tuple[Path, ...] = ()


class Target(Protocol):
    """What every module of a target offers; the package's docstring says it in words."""

    @property
    def SPEC(self) -> TargetSpec: ...  # noqa: N802, D102

    def check_machine(self, device: str) -> None: ...  # noqa: D102

    def unsupported(self, program: Program) -> str | None: ...  # noqa: D102

    def write(self, program: Program, folder: Path, context: Context) -> Path: ...  # noqa: D102

    def load(self, path: Path, device: str) -> Runner: ...  # noqa: D102
