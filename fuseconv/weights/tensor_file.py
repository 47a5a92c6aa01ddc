"""Reads and writes safetensors files: writes one tensor at a time, and maps files into memory to read them.

The format is defined by github.com/huggingface/safetensors: the length of the header, a JSON header, and the values of
all tensors without gaps. Tensors whose byte sizes are multiples of `ALIGNMENT` come first, so that each of them starts
at a multiple of `ALIGNMENT`, and so does the first tensor after them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from fuseconv.errors import FileError, RefusedError
from fuseconv.untrusted.files import open_plain

ALIGNMENT = 64
"""The alignment in bytes that AOTInductor and vector instructions prefer."""

_HEADER_LIMIT = 100_000_000  # the limit of the safetensors library

_AGAIN = "convert the model again, or copy the bundle again"

DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Maps each dtype that the format supports to its name in a header."""

_NAMED: Mapping[str, torch.dtype] = {name: dtype for dtype, name in DTYPES.items()}


@dataclass(frozen=True)
class Place:
    """The place of a tensor's values in a file.

    Attributes:
        dtype: the torch dtype of the values.
        shape: the shape of the tensor.
        offset: the position of the tensor's first byte, in bytes from the start of the file.
        size: the size of the values in bytes.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size: int


def write(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Place]:
    """Writes contiguous tensors to a file, and maps each name to the tensor's place in the file.

    Only one tensor at a time is copied to host memory. The same tensors and metadata always give the same bytes, unlike
    the safetensors library, which writes metadata in a random order.

    Args:
        path: the path of the file. Its folder is created.
        tensors: the tensors by name, on any device. Their dtypes must be in `DTYPES`.
        metadata: the text metadata of the header.

    Raises:
        FileError: the file cannot be written.
    """
    # Tensors whose sizes are not multiples of the alignment come last, in descending order of the largest power of two
    # that divides the size. Only sizes and names decide the order, so that new values of the same tensors get the same
    # places.
    ordered = sorted(tensors.items(), key=lambda item: (-math.gcd(item[1].nbytes, ALIGNMENT), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    places, offset = {}, 0
    for name, tensor in ordered:
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        places[name] = Place(tensor.dtype, tuple(tensor.shape), offset, tensor.nbytes)
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    begin = 8 + len(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, tensor in ordered:
                if tensor.nbytes:
                    file.write(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    except OSError as error:
        raise FileError.unwritable("the tensors cannot be written", error, path) from error
    return {name: Place(one.dtype, one.shape, one.offset + begin, one.size) for name, one in places.items()}


def mapped(path: Path) -> dict[str, torch.Tensor]:
    """Maps a file into memory and returns its tensors by name.

    All processes share the memory of the tensors through the page cache. A process that writes to a tensor gets its own
    copy of the page (copy-on-write).

    Raises:
        OSError: the file cannot be opened.
        RefusedError: the file is damaged.
    """
    held = placed(path)
    with open_plain(path, links=False) as file:
        data = np.memmap(file, mode="c") if held else np.empty(0, np.uint8)
    return {name: _tensor(data, one) for name, one in held.items()}


def placed(path: Path) -> dict[str, Place]:
    """Reads the header of a file and maps each tensor's name to its place in the file.

    Raises:
        OSError: the file cannot be opened.
        RefusedError: the file is damaged.
    """
    with open_plain(path, links=False) as file:
        length = file.read(8)
        size = int.from_bytes(length, "little")
        try:
            if len(length) < 8 or size > _HEADER_LIMIT:
                raise ValueError("it has no header")
            text = file.read(size)
            if len(text) < size:
                raise ValueError("it is truncated")
            header = json.loads(text)
            return dict(_checked(header, 8 + size, file.seek(0, 2)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"the file of weights is damaged: {error}"
            raise RefusedError(what, where=str(path), fix=_AGAIN) from error


def _checked(header: Any, begin: int, end: int) -> Iterator[tuple[str, Place]]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, (first, last) = _NAMED[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
        if not all(type(size) is int and size >= 0 for size in (*shape, first, last)):
            raise ValueError(f"a size of {name} is not a number")
        if last - first != math.prod(shape) * dtype.itemsize or begin + last > end:
            raise ValueError(f"the data_offsets of {name} do not fit its shape and dtype")
        if (begin + first) % dtype.itemsize:
            raise ValueError(f"the values of {name} are not aligned to its dtype")
        yield name, Place(dtype, shape, begin + first, last - first)


def _tensor(data: Any, place: Place) -> torch.Tensor:
    if place.size == 0:
        return torch.empty(place.shape, dtype=place.dtype)
    values = torch.from_numpy(data[place.offset : place.offset + place.size])
    if place.offset % ALIGNMENT:
        values = values.clone()  # a small tensor, whose size is not a multiple of the alignment
    return values.view(place.dtype).view(place.shape)
