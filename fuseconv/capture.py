"""The captured program."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuseconv.contract import Contract


@dataclass(frozen=True)
class Program:
    """An exported program in the flat calling convention: (tensor, ...) -> (tensor, ...)."""

    exported: torch.export.ExportedProgram
    contract: Contract
    examples: tuple[torch.Tensor, ...]
