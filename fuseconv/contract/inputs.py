"""Reads the input tensors of a contract from a file, or generates them with random or special values.

Generated values depend only on the contract, the sizes, the seed and the kind of values.
"""

from __future__ import annotations

import io
import lzma
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from fuseconv.contract.dims import Dim
from fuseconv.contract.dtypes import DTYPES, SHORT_DTYPES
from fuseconv.contract.spec import Contract, TensorSpec
from fuseconv.contract.values import Kind, values
from fuseconv.errors import FileError, RefusedError, UsageError
from fuseconv.untrusted.containers import HEAD, container_of
from fuseconv.untrusted.files import read_plain
from fuseconv.untrusted.plain_pickle import load_plain_pickle
from fuseconv.untrusted.plain_tensors import check_plain_tensors

LARGEST = 1024
"""The largest generated size of a dim. Attention uses quadratic memory: 12 heads of 1024 x 1024 in f64 take 100 MB."""

_EXAMPLE_SIZES = (3, 5, 7, 11, 13, 17, 19, 23)


def apply_ranges(specs: tuple[TensorSpec, ...], ranges: Mapping[str, tuple[float, float]]) -> tuple[TensorSpec, ...]:
    """Returns the specs with the given ranges of random values; a spec without a given range is unchanged.

    Args:
        specs: the specs of all inputs of the model.
        ranges: maps the name of an input to the ends of its range, both included.

    Raises:
        UsageError: a range is given for an input that does not exist.
    """
    names = [spec.name for spec in specs]
    if unknown := [name for name in ranges if name not in names]:
        raise UsageError(
            f"the model has no input {', '.join(unknown)}", where="--input-range", fix=f"use one of {', '.join(names)}"
        )
    return tuple(
        replace(spec, low=ranges[spec.name][0], high=ranges[spec.name][1]) if spec.name in ranges else spec
        for spec in specs
    )


def contract_of(tensors: Mapping[str, torch.Tensor]) -> tuple[TensorSpec, ...]:
    """Returns one spec per tensor, with the tensor's dtype and static sizes."""
    return tuple(
        TensorSpec(name, SHORT_DTYPES[str(tensor.dtype)], tuple(tensor.shape)) for name, tensor in tensors.items()
    )


def torch_dtype(short: str) -> torch.dtype:
    """Returns the torch dtype with this short name, for example `torch.float32` for `f32`."""
    dtype = getattr(torch, DTYPES[short].removeprefix("torch."))
    assert isinstance(dtype, torch.dtype)
    return dtype


def from_file(path: Path, contract: Contract | None = None) -> dict[str, torch.Tensor]:
    """Reads tensors from a .safetensors, .npz or .pt file, and returns them by name.

    The format is detected from the content. Reading never runs code. A .pt file contains a dict of tensors, or a list
    or tuple of tensors in the order of the contract's inputs.

    Args:
        path: the path of the file.
        contract: the contract that the tensors must match. They are returned in the order of its inputs, on its device.
            None returns all tensors on the CPU without this check.

    Raises:
        FileError: the file cannot be read.
        RefusedError: the file is damaged or contains something other than tensors.
        UsageError: the tensors are not the inputs of the contract.
        ContractError: a tensor does not match the contract.
    """
    tensors = _read(path, None if contract is None else [spec.name for spec in contract.inputs])
    check_plain_tensors(tensors, str(path))
    if bad := [name for name, tensor in tensors.items() if str(tensor.dtype) not in SHORT_DTYPES]:
        raise UsageError(
            f"input {bad[0]} has the unsupported dtype {tensors[bad[0]].dtype}",
            where=str(path),
            fix=f"use one of {', '.join(DTYPES)}",
        )
    if contract is None:
        return tensors
    names = [spec.name for spec in contract.inputs]
    if set(tensors) != set(names):
        raise UsageError(
            f"the file contains {', '.join(tensors) or 'no tensors'}, but the model takes {', '.join(names)}",
            where=str(path),
            fix="save one tensor for each input, under the input's name",
        )
    ordered = {name: tensors[name].to(contract.device) for name in names}
    contract.bind(tuple(ordered.values()), {})
    return ordered


_NO_ARRAYS = (ValueError, TypeError, RuntimeError, EOFError, KeyError, SyntaxError, TokenError)
"""The exceptions that numpy and torch raise for a damaged file. The header of a .npy array is a Python literal."""

_NO_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError)
"""The exceptions that `zipfile` raises for a damaged zip. An OSError can come only from bz2: all data is in memory."""


def _read(path: Path, names: list[str] | None) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load as load_safetensors

    try:
        data = read_plain(path, None)
    except OSError as error:
        what = f"the inputs file cannot be read: {error.strerror}"
        raise FileError(what, where=str(path), fix="check the path and its read permission") from error
    try:
        kind = container_of(data[:HEAD], len(data))
        if kind == "zip" and any(name.endswith(".npy") for name in zipfile.ZipFile(io.BytesIO(data)).namelist()):
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}
        if kind in ("zip", "pickle"):
            return _named(load_plain_pickle(io.BytesIO(data)), path, names)
        return dict(sorted(load_safetensors(data).items()))  # the library returns them in arbitrary order
    except (SafetensorError, *_NO_ZIP, *_NO_ARRAYS) as error:
        raise _not_tensors(path, str(error)) from error
    except pickle.UnpicklingError as error:
        raise _not_tensors(path, "it contains other objects, or is damaged") from error


def _not_tensors(path: Path, reason: str) -> RefusedError:
    return RefusedError(
        f"the inputs file cannot be read as plain tensors: {reason.splitlines()[0] if reason else 'it is damaged'}",
        where=str(path),
        fix="save a dict with one tensor for each input with safetensors.torch.save_file, numpy.savez or torch.save, "
        "or a list of the tensors with torch.save",
    )


def _named(value: object, path: Path, names: list[str] | None) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        value = (value,)
    if isinstance(value, list | tuple):
        _check_items(value, dict(enumerate(value)), path)
        keys = names if names is not None else [f"input_{index}" for index in range(len(value))]
        if len(keys) != len(value):
            raise UsageError(
                f"the file contains a {type(value).__name__} of {_counted(len(value), 'tensor')}, "
                f"but the model takes {_counted(len(keys), 'input')}",
                where=str(path),
                fix=f"save a {type(value).__name__} with one tensor for each input, in this order: {', '.join(keys)}",
            )
        return dict(zip(keys, value, strict=True))
    if isinstance(value, Mapping):
        _check_items(value, value, path)
        return {str(name): tensor for name, tensor in value.items()}
    raise _not_tensors(path, f"it contains {_kind(value)}")


def _check_items(value: object, items: Mapping[Any, object], path: Path) -> None:
    """Checks that all items of a container are tensors; a nested container is an error.

    Args:
        value: the container, for the error.
        items: the items of the container by key or index.
        path: the path of the file, for the error.

    Raises:
        RefusedError: an item is not a tensor.
    """
    for key, item in items.items():
        if not isinstance(item, torch.Tensor):
            raise _not_tensors(path, f"it contains a {type(value).__name__} whose item {key!r} is {_kind(item)}")


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def draw(contract: Contract, sizes: Mapping[str, int], *, seed: int, kind: Kind = "random") -> tuple[torch.Tensor, ...]:
    """Generates one tensor per input, on the device of the contract.

    For the kind `random`, floats are standard normal, or uniform within [low, high] if both are given. Integers are
    uniform within [low, high], or 0 or 1 without a range. In a 2D integer input named `*mask*` with the range 0..1,
    every row starts with one or more ones, like a tokenizer's mask. `values` describes the other kinds.

    Args:
        contract: the names, dtypes, shapes and ranges of the inputs.
        sizes: maps the name of every symbolic dim to its size.
        seed: the seed of the generator. The generator is on the CPU, so that every device gets the same numbers.
        kind: the kind of values, such as `random` or `NaN`; see `values`.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = (values(spec, torch_dtype(spec.dtype), spec.sizes(sizes), generator, kind) for spec in contract.inputs)
    return tuple(tensor.to(contract.device) for tensor in drawn)


def example_sizes(contract: Contract) -> dict[str, int]:
    """Returns a size of every dim for the capture: distinct, and neither 0 nor 1, which the exporter would specialize.

    Each size is small, within the range of its dim, and, if possible, different from the static sizes of the contract,
    so that no two sizes are equal by coincidence. The size of a dim with a step is a multiple of the step.
    """
    static = {size for spec in contract.inputs for size in spec.shape if isinstance(size, int)}
    sizes: dict[str, int] = {}
    for dim in contract.dims().values():
        taken = static.union(sizes.values())
        step = dim.step
        wanted = [
            *(step * size for size in _EXAMPLE_SIZES),
            *range(dim.min, min(dim.max, dim.min + 64 * step) + 1, step),
        ]
        fits = [size for size in wanted if max(dim.min, 2 * step) <= size <= dim.max]
        sizes[dim.name] = next((size for size in fits if size not in taken), fits[0] if fits else dim.max)
    return sizes


def sizes_to_try(contract: Contract, *, seed: int, largest: int = LARGEST) -> dict[str, dict[str, int]]:
    """Returns the cases of a verification, as a map from the name of each case to the size of every dim.

    One case has the smallest sizes, one case per dim has this dim at its largest size, and one case has random sizes.
    If all dims were at their largest size at once, the tensors could need too much memory (64 rows of 512 tokens with
    30,000 logits each take 8 GB in f64). Therefore only one dim at a time has its largest size, while the others have
    the sizes of the capture. No size exceeds `largest` unless the dim's range begins above it. A contract without
    symbolic dims has only the case `static`.
    """
    dims = contract.dims().values()
    if not dims:
        return {"static": {}}
    small = example_sizes(contract)
    tops = {dim.name: dim.allowed(largest) for dim in dims}
    cases = {"smallest": {dim.name: dim.min for dim in dims}}
    for dim in dims:
        cases[f"largest {dim.name}"] = {**small, dim.name: tops[dim.name]}
    generator = torch.Generator().manual_seed(seed)
    cases["random"] = {dim.name: _between(dim, min(tops[dim.name], dim.min + 64 * dim.step), generator) for dim in dims}
    return cases


def _between(dim: Dim, top: int, generator: torch.Generator) -> int:
    low, high = dim.min // dim.step, max(top, dim.min) // dim.step
    return dim.step * int(torch.randint(low, high + 1, (), generator=generator))
