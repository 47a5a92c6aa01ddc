"""Helpers for writing and loading artifacts: dense inputs, a check for -0.0, safe writes, and external weights."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch.fx import GraphModule
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fuseconv.errors import FileError, RefusedError
from fuseconv.program.captured import Program

_ALIGNMENT = 16


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose memory is contiguous, aligned and holds its actual values: the given tensor or a copy.

    Compiled code reads memory by address, so it ignores strides and the lazy conjugation and negation of `torch.conj`.
    """
    if tensor.is_neg() or tensor.is_conj():
        return tensor.clone(memory_format=torch.contiguous_format)
    if not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def negative_zero(program: Program) -> str | None:
    """Describes the first node with the constant -0.0 as an argument, or returns None if there is no such node.

    A format that merges equal constants may replace -0.0 with 0.0, because the two compare equal.
    """
    for module in program.exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            for value in pytree.tree_leaves((node.args, dict(node.kwargs))):
                if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
                    return f"the argument -0.0 of {node.name}, which would be merged with another op's 0.0"
    return None


def hollow(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a placeholder for a weight that an artifact does not contain: one element, expanded to its shape.

    The element is NaN if the dtype supports NaN, so that the results are NaN if the weights are not set. The element is
    in host memory, so that torch.export writes only one element, whatever the device. A tensor without elements is not
    expanded, because torch.export cannot write an expanded tensor without elements (torch 2.13).
    """
    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    value = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full((), value, dtype=tensor.dtype).expand(tensor.shape)


def attach(module: torch.nn.Module, weights: Mapping[str, torch.Tensor], path: Path) -> None:
    """Sets the weights of a module whose artifact contains only placeholders for them.

    The weights are not copied.

    Args:
        module: the loaded module, which is changed in place.
        weights: the weights to set, by their names in the module.
        path: the path of the artifact, for the error.

    Raises:
        RefusedError: the module does not contain a weight of a given name, or a shape differs.
    """
    try:
        surplus = module.load_state_dict(dict(weights), strict=False, assign=True).unexpected_keys
    except RuntimeError as error:
        surplus = [str(error).strip().splitlines()[-1].strip()]
    if surplus:
        what = f"the weights do not fit the artifact: {', '.join(surplus)}"
        raise RefusedError(what, where=str(path), fix="convert the model again, or copy the bundle again")


def release(tensors: Iterable[torch.Tensor]) -> None:
    """Makes tensors empty, so that their memory is freed even if other objects still hold the tensors.

    Memory that other views use is not freed. A finalizer may call this function at any time, even while torch.export
    traces another model. Therefore the ops bypass all active dispatch modes.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        for tensor in tensors:
            for one in (tensor, tensor._base):  # a view also keeps its base alive
                if one is not None:
                    one.data = one.new_empty(0)


@contextmanager
def saved(path: Path) -> Iterator[IO[bytes]]:
    """Creates the folder of `path`, and yields a writable binary file for one of torch's save functions.

    torch's C++ save functions abort the process if a write fails, for example on a full disk. Therefore the yielded
    file never reports a failed write. It records the first error, which is raised when the block ends.

    Raises:
        FileError: a write failed.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            sink = _Sink(file)
            yield sink  # type: ignore[misc]
            sink.check()
    except OSError as error:
        raise FileError.unwritable("the artifact cannot be written", error, str(path)) from error


class _Sink(io.RawIOBase):
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        if self._error is None:
            try:
                self._file.write(data)
            except OSError as error:
                self._error = error
        return len(data)

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seeks to the start, as a save function does at the end."""
        return self._file.seek(offset, whence)

    def check(self) -> None:
        if self._error is not None:
            raise self._error
