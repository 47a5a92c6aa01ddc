"""Helpers for artifacts: contiguous memory, -0.0 as a constant, saving files, and weights stored elsewhere."""

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
    """Returns the values of a tensor in contiguous, aligned memory without lazy conjugation or negation.

    Code that reads memory by address sees neither strides nor the lazy conjugation and negation of `torch.conj`.
    """
    if tensor.is_neg() or tensor.is_conj():
        return tensor.clone(memory_format=torch.contiguous_format)
    if not tensor.is_contiguous():
        return tensor.contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def negative_zero(program: Program) -> str | None:
    """Describes a node that is called with -0.0, if any.

    Formats that merge equal constants would turn it into 0.0.
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
    """Sets the weights of a module that was loaded from an artifact without them.

    The weights are not copied.

    Raises:
        RefusedError: the weights do not fit the artifact.
    """
    try:
        surplus = module.load_state_dict(dict(weights), strict=False, assign=True).unexpected_keys
    except RuntimeError as error:
        surplus = [str(error).strip().splitlines()[-1].strip()]
    if surplus:
        what = f"the weights do not fit the artifact: {', '.join(surplus)}"
        raise RefusedError(what, where=str(path), fix="convert the model again, or copy the bundle again")


def release(tensors: Iterable[torch.Tensor]) -> None:
    """Frees the memory of tensors, even if other objects hold the tensors.

    Other views of the memory stay valid. A finalizer may call this at any time, even while torch.export traces another
    model. The modes of this trace must not see the ops.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        for tensor in tensors:
            for one in (tensor, tensor._base):  # a view also keeps its base alive
                if one is not None:
                    one.data = one.new_empty(0)


@contextmanager
def saved(path: Path) -> Iterator[IO[bytes]]:
    """Opens `path` for one of torch's save functions and creates its folder.

    A save function in C++ aborts the process if a write fails, for example on a full disk. Therefore it gets a file
    whose writes always succeed; the first error is recorded and raised at the end.

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
        raise FileError(f"the artifact cannot be written: {error.strerror}", where=str(path)) from error


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
