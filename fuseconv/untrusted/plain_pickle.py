"""Reads a torch.save file that contains only tensors and plain values."""

from __future__ import annotations

import pickle
from typing import IO, Any

import torch


def load_plain_pickle(file: IO[bytes]) -> Any:
    """Reads a torch.save file to the CPU, if the file contains only tensors and plain values.

    A pickle is a program for a stack machine, and a damaged one can fail in any way: an empty stack, a missing key, an
    attribute of a number. All of these raise the same error.

    Raises:
        pickle.UnpicklingError: the file contains anything else, or is damaged.
        MemoryError: the file needs more memory than is available.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise pickle.UnpicklingError(reason) from error
