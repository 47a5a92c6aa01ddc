"""Defines the user's choice about CUDA graphs, and the status that a model reports about its CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fuseconv.errors import UsageError
from fuseconv.targets import TARGETS

Choice = Literal["auto"] | bool
Shapes = tuple[tuple[int, ...], ...]

CAPTURED = tuple(sorted(name for name, target in TARGETS.items() if target.SPEC.cuda_graphs))
"""The targets whose calls can be captured in CUDA graphs. The other targets have alternatives: ONNX Runtime has its own
CUDA graphs, and a torch.export program can be compiled."""


@dataclass(frozen=True)
class CudaGraphs:
    """The state of a model's CUDA graphs.

    Attributes:
        shapes: for each graph, in the order of capture, the shapes of its inputs, padded to the size of a bucket.
        memory: the GPU memory of the graphs in bytes: inputs, outputs and intermediate values.
        reason: why calls are not captured. None if calls are captured already, or will be once a capture saves time.
    """

    shapes: tuple[Shapes, ...]
    memory: int
    reason: str | None


def ungraphed_reason(choice: Choice, device: str, target: str) -> str | None:
    """Returns why a target runs without CUDA graphs, or None if its calls can be captured.

    Args:
        choice: the user's choice: `auto`, True or False.
        device: the device of the contract.
        target: the name of the target.

    Raises:
        UsageError: the choice is not one of these values, or the choice is True and a capture is not possible.
    """
    if choice not in ("auto", True, False):
        raise UsageError(f"cuda_graphs is {choice!r}", where=f"cuda_graphs={choice!r}", fix="use 'auto', True or False")
    if not choice:
        return "cuda_graphs is False"
    if device != "cuda":
        reason, fix = f"the bundle is for {device}", "convert with --device cuda, or do not set cuda_graphs"
    elif target not in CAPTURED:
        reason, fix = (
            f"the target {target} does not support CUDA graphs",
            f"use {' or '.join(CAPTURED)}, or do not set cuda_graphs",
        )
    else:
        return None
    if choice != "auto":
        raise UsageError(f"CUDA graphs cannot be used: {reason}", where="cuda_graphs", fix=fix)
    return reason
