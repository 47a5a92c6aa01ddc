"""Writes the outputs of a call to an .npz or safetensors file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save

from fuseconv.bundle.whole_file import write_whole
from fuseconv.contract.dtypes import short_dtype
from fuseconv.errors import FileError, UsageError


def write_outputs(outputs: Mapping[str, torch.Tensor], path: Path) -> None:
    """Writes named CPU tensors to a file, in .npz format if the path has this suffix, otherwise as safetensors.

    Raises:
        FileError: the file cannot be written.
        UsageError: the format does not support the dtype of a tensor.
    """
    content = _npz(outputs, path) if path.suffix == ".npz" else save(dict(outputs))
    try:
        write_whole(path, content)
    except OSError as error:
        raise FileError.unwritable("the outputs cannot be written", error, path) from error


def _npz(outputs: Mapping[str, torch.Tensor], path: Path) -> bytes:
    """Returns the content of an .npz file with these tensors. `path` is for the error message."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # np.savez's own parameters could clash with output names
        for name, value in outputs.items():
            try:
                array = value.numpy()
            except TypeError:
                what = f"the output {name} cannot be written as .npz: NumPy has no dtype {short_dtype(value.dtype)}"
                raise UsageError(what, where=str(path), fix="write a .safetensors file") from None
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return buffer.getvalue()
