"""Reads new weights for a converted model, and checks them against the names, shapes and dtypes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from fuseconv.errors import RefusedError, UsageError
from fuseconv.sources.methods import MODULE
from fuseconv.sources.pickles import listed
from fuseconv.sources.state_dict import read_tensors, state_of
from fuseconv.untrusted.plain_tensors import check_plain_tensors

_FIX = "pass weights of the model from which the bundle was converted, for example after further training"


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Reads a state dict from a torch.save file, a .safetensors file, or a folder of .safetensors files.

    Raises:
        UsageError: the folder has no .safetensors file, or two of its files contain tensors of the same name.
        RefusedError: a file is damaged, or is not a state dict.
    """
    if not path.is_dir():
        tensors = state_of(read_tensors(path), path)
    else:
        files = sorted(path.glob("*.safetensors"))
        if not files:
            fix = "give a .safetensors file, a state dict, or a folder with .safetensors files"
            raise UsageError("the folder has no .safetensors file", where=str(path), fix=fix)
        tensors = {}
        for file in files:
            found = read_tensors(file)
            if twice := sorted(tensors.keys() & found.keys()):
                raise UsageError(
                    f"two files contain {listed(twice)}", where=str(path), fix="remove one of the two files"
                )
            tensors |= found
    check_plain_tensors(tensors, str(path))
    return tensors


def fitted(
    weights: Mapping[str, torch.Tensor],
    known: Mapping[str, torch.Tensor],
    tied: Mapping[str, str],
    path: Path,
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Checks new weights against a model, and returns them under the model's names.

    Args:
        weights: the new weights. Their names may share a prefix that the model lacks, such as the prefix of a model
            with another head. The names in the model have a prefix if a method of the model was converted.
        known: the weights of the model: their names, shapes and dtypes.
        tied: maps the name of each weight to the first name with the same memory. `weights` may omit the other names.
        path: the source of the new weights, for errors.
        dtype: the dtype to which the conversion cast floating-point weights. None if it kept their dtypes.

    Raises:
        RefusedError: a weight is missing, unknown, or has another shape or dtype; tied weights differ from each other;
            or a constant differs from the model's.
    """
    prefix, outer = _prefix(weights, tied), _own_prefix(weights, tied)
    renamed = {outer + name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    found: dict[str, torch.Tensor] = {}
    for name, first in tied.items():
        others = (other for other in tied if tied[other] == first and other in renamed)
        source = name if name in renamed else next(others, None)
        if source is None:
            lacking = sorted(one for one in tied if not any(tied[o] == tied[one] and o in renamed for o in tied))
            raise RefusedError(f"weights are missing: {listed(lacking)}", where=str(path), fix=_FIX)
        found[name] = renamed[source]
    if surplus := sorted(renamed.keys() - known.keys()):
        raise RefusedError(f"the model has no weights with the names {listed(surplus)}", where=str(path), fix=_FIX)
    for name in sorted(renamed.keys() - tied.keys()):
        if not torch.equal(renamed[name].to(known[name].dtype), known[name].cpu()):
            what = f"{name} is a constant of the model, but its value differs from the bundle's"
            raise RefusedError(what, where=str(path), fix=_FIX)
    for name, tensor in found.items():
        if dtype is not None and tensor.is_floating_point():
            tensor = found[name] = tensor.to(dtype)  # noqa: PLW2901
        own = known[name]
        if tensor.shape != own.shape or tensor.dtype != own.dtype:
            what = f"{name} is {_described(tensor)}, but the model needs {_described(own)}"
            raise RefusedError(what, where=str(path), fix=_FIX)
    for name, first in tied.items():
        if found[name] is not found[first] and not torch.equal(found[name], found[first]):
            what = f"{name} and {first} are one tied weight in the model, but their values differ"
            raise RefusedError(what, where=str(path), fix=_FIX)
        found[name] = found[first]
    return found


def _prefix(weights: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> str:
    """Returns the prefix that all names of the model have in the new weights, or "" if there is no such prefix."""
    first = next(iter(tied), "")
    ends = [""] if first in weights or not first else []
    ends += [name[: -len(first)] for name in weights if name.endswith(f".{first}")]
    return next((end for end in ends if all(end + one in weights for one in set(tied.values()))), "")


def _own_prefix(weights: Mapping[str, torch.Tensor], tied: Mapping[str, str]) -> str:
    """Returns the prefix `module.` if only the model's names have it, because `Method` wraps the model, or else ""."""
    prefix = f"{MODULE}."
    inside = {one.removeprefix(prefix) for one in set(tied.values()) if one.startswith(prefix)}
    return prefix if inside and not any(name.startswith(prefix) for name in weights) else ""


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
