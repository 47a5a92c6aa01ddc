"""A torch.save file read as nothing but tensors, whatever is in it."""

from __future__ import annotations

import pickle
from typing import IO, Any

import torch


def load_plain_pickle(file: IO[bytes]) -> Any:
    """Reads what `torch.save` wrote, onto the CPU, if it needs nothing but tensors and plain values.

    A pickle is a program for a machine with a stack, and a damaged one can fail wherever that machine can: on an empty
    stack, at a key that is not there, at an attribute of a number. All of them mean the same.

    Raises:
        pickle.UnpicklingError: it needs more, or is damaged.
        MemoryError: it asks for more memory than there is.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise pickle.UnpicklingError(reason) from error
