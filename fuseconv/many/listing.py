"""Reads a list of models: a folder of model files, or a YAML file with models and options of `fuseconv convert`.

```yaml
options:                 # of every model
  target: torchscript,export
models:
  - a.pt2
  - hf://org/name@main   # a model on a Hugging Face hub
  - model: encoder       # a Hugging Face folder
    name: encoder-b32
    bucket: batch=1,8,32
```

Does not import torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fuseconv.errors import UsageError
from fuseconv.serving.names import is_name
from fuseconv.untrusted.files import read_plain
from fuseconv.untrusted.hub import reference

SUFFIXES = (".pt2", ".pt", ".pth", ".bin", ".safetensors")
"""The suffixes of the model files in a folder. A subfolder with a `config.json` is a Hugging Face model."""

MAX_SIZE = 2**20
"""The maximum size of a list file in bytes."""

PATHS = ("inputs", "plan", "rules")
"""The options whose values are paths, relative to the list file."""

Options = Mapping[str, str | bool | Sequence[str]]
"""Options of `fuseconv convert`, without leading dashes. A flag is a bool. A repeatable option may be a list."""


@dataclass(frozen=True)
class Entry:
    """A model to convert: its name, which is also the bundle's name, its path, and its options."""

    name: str
    model: Path
    options: Options

    def words(self) -> list[str]:
        """Returns the options as command-line words of `fuseconv convert`."""
        words = []
        for key, value in self.options.items():
            if isinstance(value, bool):
                words += [f"--{key}"] if value else []
                continue
            for one in (value,) if isinstance(value, str) else value:
                words += [f"--{key}", one]
        return words


def read_listing(path: Path, known: Collection[str]) -> tuple[Entry, ...]:
    """Reads a list of models.

    Args:
        path: a YAML file, or a folder of models. Paths in the file are relative to the file.
        known: the names of the valid options, without leading dashes.

    Returns:
        The models: of a file in its order, and of a folder in the order of their paths.

    Raises:
        FileError: the file cannot be read.
        UsageError: the file is not a valid list or is empty, an option is unknown, or two models have the same name.
    """
    entries = _of_folder(path) if path.is_dir() else _of_file(path, known)
    if not entries:
        fix = (
            f"put files with the suffix {', '.join(SUFFIXES)} or Hugging Face folders into it"
            if path.is_dir()
            else "add models to the list"
        )
        raise UsageError("there are no models", where=str(path), fix=fix)
    names = [entry.name for entry in entries]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two models have the name {twice}", where=str(path), fix="give one of the two another `name`")
    if wrong := next((name for name in names if not is_name(name)), None):
        fix = "use letters, digits, '.', '_' and '-'"
        raise UsageError(f"{wrong!r} cannot be the name of a bundle", where=str(path), fix=fix)
    return entries


def _of_folder(folder: Path) -> tuple[Entry, ...]:
    """Returns the model files and Hugging Face folders in a folder, without options."""
    models = [
        path
        for path in sorted(folder.iterdir())
        if (path.is_file() and path.suffix in SUFFIXES) or (path / "config.json").is_file()
    ]
    return tuple(Entry(path.stem if path.is_file() else path.name, path, {}) for path in models)


def _of_file(path: Path, known: Collection[str]) -> tuple[Entry, ...]:
    """Parses a YAML list of models. Raises UsageError if it is invalid."""
    where = str(path)
    try:
        data = read_plain(path, MAX_SIZE)
        found = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        said = " ".join(str(error).split())[:300]
        raise UsageError(f"the list is not valid YAML: {said}", where=where, fix="correct the file") from error
    if not isinstance(found, dict) or not isinstance(found.get("models"), list) or set(found) - {"models", "options"}:
        raise UsageError(
            "the list must have the key `models` and may have `options`, but no other keys",
            where=where,
            fix="write `models:` with a path or a mapping for each model, and `options:` for options of all models",
        )
    shared = _options(found.get("options") or {}, known, path.parent, f"{where}, options")
    return tuple(_entry(one, shared, known, path, at) for at, one in enumerate(found["models"], 1))


def _entry(value: Any, shared: Options, known: Collection[str], path: Path, at: int) -> Entry:
    """Parses one model of a YAML list.

    Args:
        value: the item of the list: the path of the model, or a mapping with the key `model`.
        shared: the options of all models, which the model's own options override.
        known: the names of the valid options.
        path: the path of the list.
        at: the position in the list, counted from 1, for error messages.
    """
    where = f"{path}, model {at}"
    given = {"model": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("model"), str):
        raise UsageError(
            "a model must be a path, or a mapping with the key `model`", where=where, fix="write `- model: PATH`"
        )
    on_hub = reference(given["model"])
    model = Path(given["model"]) if on_hub else path.parent / given["model"]
    usual = on_hub.name if on_hub else model.stem if model.suffix in SUFFIXES else model.name
    name = str(given.get("name", usual))
    own = {key: each for key, each in given.items() if key not in ("model", "name")}
    return Entry(name, model, {**shared, **_options(own, known, path.parent, where)})


def _options(value: Any, known: Collection[str], folder: Path, where: str) -> Options:
    """Validates a mapping of options, and resolves paths relative to `folder`. `where` is for error messages."""
    if not isinstance(value, dict):
        raise UsageError("the options must be a mapping", where=where, fix="write OPTION: VALUE")
    for key, one in value.items():
        if key not in known:
            raise UsageError(f"unknown option {key}", where=where, fix=f"use one of {', '.join(sorted(known))}")
        if not isinstance(one, str | bool) and not (
            isinstance(one, list) and all(isinstance(item, str) for item in one)
        ):
            raise UsageError(
                f"{key} must be a text, true, false or a list of texts", where=where, fix="quote the value"
            )
    return {str(key): _located(one, folder) if key in PATHS else one for key, one in value.items()}


def _located(value: str | bool | Sequence[str], folder: Path) -> str | bool | Sequence[str]:
    """Returns the path of a file in the list's folder if it exists. Otherwise returns the value unchanged."""
    return str(folder / value) if isinstance(value, str) and (folder / value).exists() else value
