"""A torchvision that can be imported and does nothing: three packages import it, for what their models need not."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


def _nothing(*_: Any, **__: Any) -> None:
    """Takes anything."""


class _Any(type):
    """A class that has every attribute, by name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Module(ModuleType):
    """A module that has every name."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Any(name, (), {"__init__": _nothing})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds torchvision and what is below it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Returns the spec of a module that does nothing, for torchvision alone."""
        del path, target
        is_ours = name.partition(".")[0] == "torchvision"
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Makes it."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Gives it a version, which is asked for."""
        module.__version__ = "0.0"  # type: ignore[attr-defined]


def install() -> None:
    """Lets torchvision be imported where it is not installed.

    transformers and diffusers take it for the real one; their models are built in a process without it.
    """
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(_Finder())
