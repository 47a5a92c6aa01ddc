"""Wraps a method of a module as the `forward` of a new module, which can be captured like any other module."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch

from fuseconv.errors import UsageError

MODULE = "module"
"""The name of the attribute of a `Method` that contains the wrapped module."""


class Method(torch.nn.Module):
    """A module whose forward is a method of another module, with the method's signature.

    The other module is a submodule with all of its weights, so that a weight has the same name for every method.
    """

    def __init__(self, module: torch.nn.Module, method: Any) -> None:
        super().__init__()
        self.module = module
        self.forward = method


def of_part(module: torch.nn.Module, part: torch.nn.Module) -> Method:
    """Returns a module that contains `module` and whose forward calls its submodule `part`, including hooks."""

    @functools.wraps(part.forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        return part(*args, **kwargs)

    return Method(module, call)


def method_of(module: torch.nn.Module, attribute: str, path: Path, known: Sequence[str] = ()) -> torch.nn.Module:
    """Returns a module whose forward calls a method or submodule of a module.

    Args:
        module: the module that contains the method.
        attribute: the name of the method or of a submodule. A dot precedes a name inside a submodule: `encode`,
            `decoder.step`.
        path: the path of the model, for error messages.
        known: the names of methods that are not attributes of the module, for messages.

    Raises:
        UsageError: the module has no such method.
    """
    fix = f"use one of {', '.join([*known, _methods(module)])}"
    try:
        method = attrgetter(attribute)(module)
    except AttributeError as error:
        raise UsageError(f"the model has no method {attribute}: {error}", where=str(path), fix=fix) from error
    if isinstance(method, torch.nn.Module):
        return of_part(module, method)
    if not inspect.ismethod(method):
        raise UsageError(
            f"{attribute} is a {type(method).__name__}, not a method of the model",
            where=str(path),
            fix=fix,
        )
    return Method(module, method)


def _methods(module: torch.nn.Module) -> str:
    """Returns the names of a module's public methods and submodules, separated by commas.

    Only methods that the module's own class defines are included.
    """
    defined = vars(type(module)).items()
    methods = [name for name, one in defined if inspect.isfunction(one) and not name.startswith("_")]
    return ", ".join(dict.fromkeys([*methods, *dict(module.named_children())]))
