"""Registers the dataclasses that a model returns, so that torch.export and the checks find the tensors in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

Exported = TypeVar("Exported")

_UNKNOWN = "which is not a known type"
"""Part of torch.export's error message for a result whose class is not registered."""


def export_registering(
    export: Callable[[], Exported], model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Exported:
    """Exports a model. If torch.export does not know the class of its result, registers the dataclasses in it first.

    Args:
        export: a function that calls torch.export.
        model: the model that is exported.
        args: its positional inputs.
        kwargs: its inputs by keyword.

    Raises:
        Exception: the error of the export, for example because the result contains a class that is no dataclass.
    """
    try:
        return export()
    except Exception as error:
        if _UNKNOWN not in str(error) or not _register(_result(model, args, kwargs)):
            raise
        return export()


def _result(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a model on copies of its state and its inputs, so that neither changes, and returns its result."""
    state = {name: tensor.clone() for name, tensor in chain(model.named_parameters(), model.named_buffers())}
    args, named = pytree.tree_map_only(torch.Tensor, torch.clone, (args, dict(kwargs)))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return functional_call(model, state, args, named)


def _register(result: Any) -> bool:
    """Registers the classes of all dataclass instances in a result. Returns whether there were any to register."""
    found = {type(leaf) for leaf in pytree.tree_leaves(result) if is_dataclass(leaf)}
    for kind in found:
        torch.export.register_dataclass(kind)
    if found:
        _register(result)  # the fields may contain instances of further classes
    return bool(found)
