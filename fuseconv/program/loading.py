"""Loads exported programs."""

from __future__ import annotations

from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def load_program(file: str | Path | IO[bytes]) -> ExportedProgram:
    """Returns the program that a file of torch.export.save contains, in a form that can be decomposed.

    torch.export.load makes a complex buffer as a view of real numbers that have another shape. run_decompositions makes
    that view again, of a fake tensor, and fails: "Tensor must have a last dimension of size 2" (torch 2.13).
    So the buffers returned are not views, and have the memory of the views.
    """
    import torch

    program = torch.export.load(file)
    for name, tensor in program.state_dict.items():
        if not isinstance(tensor, torch.nn.Parameter):
            program.state_dict[name] = tensor.data
    return program
