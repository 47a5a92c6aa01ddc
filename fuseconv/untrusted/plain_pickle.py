"""Reads a torch.save file without running code: only tensors, numbers, strings and containers are accepted."""

from __future__ import annotations

import pickle
from typing import IO, Any

import torch


def load_plain_pickle(file: IO[bytes]) -> Any:
    """Returns the contents of a torch.save file, with all tensors on the CPU. Loads with `weights_only=True`.

    A pickle is a program for a stack machine, and a damaged pickle can fail with any exception, for example because the
    stack is empty or a key is missing. All these exceptions are converted to one type.

    Args:
        file: the file, opened for reading.

    Raises:
        pickle.UnpicklingError: the file is damaged, or contains an object that `weights_only=True` does not allow.
        MemoryError: reading the file requires more memory than is available.
    """
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, MemoryError):
        raise
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise pickle.UnpicklingError(reason) from error
