"""Reads state dicts from torch.save or safetensors and loads them into the module that `--model` builds."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fuseconv.contract.options import Options, parse_factory
from fuseconv.errors import FuseconvError, RefusedError, UsageError
from fuseconv.sources.pickles import listed
from fuseconv.sources.sniffing import container, sniff
from fuseconv.sources.subject import Loaded
from fuseconv.untrusted.files import is_plain, open_plain
from fuseconv.untrusted.plain_pickle import load_plain_pickle
from fuseconv.untrusted.plain_tensors import check_plain_tensors


def load(path: Path, options: Options) -> Loaded:
    """Reads a state dict without running its code, and loads it into the module that `--model` builds.

    Raises:
        RefusedError: the state dict is damaged or does not match the module, or the module's code is not trusted.
        UsageError: `--model` is missing or invalid.
    """
    return fill(read_tensors(path), path, options)


def fill(value: Any, path: Path, options: Options) -> Loaded:
    """Builds the module of `options.model`, loads tensors into it, and returns the module.

    Args:
        value: the contents of a file: a state dict, or a mapping that contains one.
        path: the path of the file, for the error.
        options: the options, which name the factory of the module.

    Raises:
        RefusedError: the tensors do not match the module, or its code is not trusted.
        UsageError: `--model` is missing or invalid.
    """
    tensors = state_of(value, path)
    check_plain_tensors(tensors, str(path))
    if options.model is None:
        raise _without_module(value, tensors, path)
    options.require("code", f"--model {options.model}", options.model)
    module = build(options.model)
    _load_into(module, tensors, path)
    return Loaded(module)


def _without_module(value: Any, tensors: Mapping[str, torch.Tensor], path: Path) -> UsageError:
    """Returns the error for a file that contains only tensors, if `--model` is not given."""
    keys = ", ".join(map(str, value)) if isinstance(value, Mapping) and not _is_state(value) else ""
    what = f"a training checkpoint ({keys}), with {len(tensors)} tensors" if keys else f"{len(tensors)} tensors"
    fix = "name the factory of the module with --model pkg.mod:factory or --model file.py:factory, and --trust code"
    if is_plain(path.parent / "config.json") and container(path)[0] == "safetensors":
        fix = f"convert its folder, which contains a config.json: {path.absolute().parent}; or {fix}"
    return UsageError(f"the file contains {what} but no module", where=str(path), fix=fix)


_PROGRAMS = {"pt2": "an exported program", "torchscript": "a TorchScript program"}
"""The formats of files that a state dict may be confused with, in words."""


def read_tensors(path: Path) -> Any:
    """Returns the contents of a torch.save or safetensors file, without running code from the file.

    Raises:
        RefusedError: the file is damaged, or needs code to be read.
        UsageError: the file contains a program.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    form = container(path)[0]
    if form == "zip" and (program := _PROGRAMS.get(sniff(path))) is not None:
        fix = "give a file with tensors alone: torch.save(model.state_dict(), 'weights.pt')"
        raise UsageError(f"the file contains {program}, and not a state dict", where=str(path), fix=fix)
    try:
        if form == "safetensors":
            return load_file(path)
        with open_plain(path) as file:
            return load_plain_pickle(file)
    except (SafetensorError, RuntimeError, EOFError, ValueError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise RefusedError(
            f"the tensors cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
            where=str(path),
            fix="save the state dict again",
        ) from error


def state_of(value: Any, path: Path) -> dict[str, torch.Tensor]:
    """Returns the state dict in the contents of a file: the contents themselves, or the only state dict inside them.

    The state dict of a module without parameters and buffers is empty.

    Raises:
        RefusedError: the file contains no state dict, or several.
    """
    if _is_state(value) or (isinstance(value, Mapping) and not value):
        return dict(value)
    found = {str(key): part for key, part in value.items() if _is_state(part)} if isinstance(value, Mapping) else {}
    if len(found) == 1:
        return dict(next(iter(found.values())))
    raise RefusedError(
        f"the file contains a {type(value).__name__} "
        + (f"with the state dicts {', '.join(found)}, but must contain only one" if found else "without a state dict"),
        where=str(path),
        fix=f"save only one: torch.save(torch.load({path.name!r})[{next(iter(found))!r}], 'weights.pt')"
        if found
        else "save only model.state_dict()",
    )


def _is_state(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(key, str) and isinstance(tensor, torch.Tensor) for key, tensor in value.items())
    )


def build(model: str) -> torch.nn.Module:
    """Imports and calls a factory, and returns the module that it builds.

    This runs the factory's code.

    Args:
        model: the factory, as `pkg.mod:factory` or `file.py:factory`. It may also be a module instance.

    Raises:
        UsageError: the Python module or file does not exist, or its import fails; or the factory does not exist, fails,
            or does not return a torch.nn.Module.
    """
    origin, name = parse_factory(model)
    where = f"--model {model}"
    with (
        _importable(Path(origin).resolve().parent if origin.endswith(".py") else Path.cwd()),
        _imported(origin, where) as imported,
    ):
        try:
            made = getattr(imported, name)
            module = made if isinstance(made, torch.nn.Module) else made()
        except FuseconvError:
            raise
        except Exception as error:
            raise UsageError(
                f"{name} does not build a model: {type(error).__name__}: {error}",
                where=where,
                fix="name a class or function that takes no arguments and returns a torch.nn.Module",
            ) from error
    if not isinstance(module, torch.nn.Module):
        raise UsageError(
            f"{name} returned an object of type {type(module).__name__}", where=where, fix="return a torch.nn.Module"
        )
    return module


@contextmanager
def _imported(origin: str, where: str) -> Iterator[Any]:
    """Imports a Python module or file. During the block, the classes of a file are found by the name of its module."""
    with ExitStack() as known:
        try:
            imported = _import(origin, known)
        except FuseconvError:
            raise
        except Exception as error:
            raise UsageError(
                f"{origin} cannot be imported: {type(error).__name__}: {error}",
                where=where,
                fix="correct the error; code that trains or saves a model belongs under `if __name__ == '__main__':`",
            ) from error
        yield imported


def _import(origin: str, known: ExitStack) -> Any:
    if not origin.endswith(".py"):
        return importlib.import_module(origin)
    name = Path(origin).stem
    spec = importlib.util.spec_from_file_location(name, origin)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if sys.modules.setdefault(name, module) is module:  # dataclasses and pickle look up a class by this name
        known.callback(sys.modules.pop, name, None)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Adds a folder to the front of sys.path for the block, as Python does when it runs a file in the folder."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _load_into(module: torch.nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Loads all tensors of a state dict into a module.

    Tensors that are tied in the module may occur in the file under only one of their names.

    Raises:
        RefusedError: a tensor is missing, unexpected, or of another shape.
    """
    own = module.state_dict(keep_vars=True)
    shapes = [name for name, tensor in tensors.items() if name in own and own[name].shape != tensor.shape]
    filled = {id(own[name]) for name in tensors if name in own}
    missing = [name for name, tensor in own.items() if name not in tensors and id(tensor) not in filled]
    unexpected = [name for name in tensors if name not in own]
    problems = [
        *([f"missing: {listed(missing)}"] if missing else []),
        *([f"not in the model: {listed(unexpected)}"] if unexpected else []),
        *(
            f"{name} has the shape {list(tensors[name].shape)}, but the model has {list(own[name].shape)}"
            for name in shapes[:4]
        ),
    ]
    if problems:
        raise RefusedError(
            f"the state dict does not fit the model; {'; '.join(problems)}",
            where=str(path),
            fix=_renaming(own, tensors)
            or "build the model from which the tensors were saved: names and shapes must match",
        )
    for tensor in own.values():
        if 0 in tensor.stride():  # an expanded tensor, whose elements share memory, cannot be filled
            tensor.data = tensor.detach().clone(memory_format=torch.contiguous_format)
    module.load_state_dict(tensors, strict=False)


def _renaming(own: Collection[str], tensors: Collection[str]) -> str:
    """Returns the fix if all names have a prefix that a training framework added, such as `module.`, else ""."""
    prefix = next(iter(tensors)).partition(".")[0] + "."
    if not all(name.startswith(prefix) for name in tensors) or {name.removeprefix(prefix) for name in tensors} - set(
        own
    ):
        return ""
    return (
        f"remove the prefix {prefix!r}, which some training frameworks add to the names: save "
        f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state.items()}}"
    )
