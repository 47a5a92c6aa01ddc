"""Reads modules that `torch.save(model)` pickled.

Reading a pickle may run arbitrary code, so the user must trust the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fuseconv.contract.options import Options
from fuseconv.errors import RefusedError, UnsupportedError, UpstreamError
from fuseconv.sources.pickles import listed
from fuseconv.sources.sniffing import key_of_checkpoint, pickle_names
from fuseconv.sources.state_dict import fill
from fuseconv.sources.subject import Loaded
from fuseconv.sources.wrappers import unwrapped
from fuseconv.untrusted.files import open_plain


def load(path: Path, options: Options) -> Loaded:
    """Reads a pickled module, or a training checkpoint that contains a module or a state dict among other objects.

    Raises:
        RefusedError: pickles are not trusted. The error lists the unsafe globals. Or the file contains no model, or
            several.
        UnsupportedError: a class that the pickle references cannot be imported.
        UpstreamError: the pickle cannot be read.
    """
    key = key_of_checkpoint(path) if "pickle" not in options.trust else ""
    what = f"the training checkpoint with a {key}" if key else "the pickle"
    also = " and --model, which builds the module for its tensors" if key else ""
    names = pickle_names(path)
    options.require("pickle", what, str(path), listed(names), also)
    try:
        with open_plain(path) as file:
            value = torch.load(file, map_location="cpu", weights_only=False)
    except (AttributeError, ImportError) as error:
        if own := [name for name in names if name.startswith("__main__.")]:
            raise UnsupportedError(
                f"the pickle needs classes of the script that saved it: {listed(own)}",
                where=str(path),
                fix="save it with torch.export.save(torch.export.export(module, inputs), 'model.pt2'); or save its "
                "state dict, and give --model script.py:CLASS and --trust code",
            ) from error
        raise UnsupportedError(
            f"the pickle needs classes that cannot be imported here: {error}",
            where=str(path),
            fix="add the folder of the module's own code to PYTHONPATH, or save its state dict and give --model",
        ) from error
    except Exception as error:
        raise UpstreamError(
            f"the pickle cannot be read: {type(error).__name__}: {error}",
            where=str(path),
            fix="save the module again, or save its state dict and give --model",
        ) from error
    return Loaded(value) if isinstance(value, torch.nn.Module) else _contained(value, path, options)


def _contained(value: Any, path: Path, options: Options) -> Loaded:
    """Returns the only module in a training checkpoint, or loads the checkpoint's state dict into `Options.model`.

    Raises:
        RefusedError: the checkpoint contains several different modules, or neither a module nor a state dict.
    """
    parts = value.items() if isinstance(value, Mapping) and options.model is None else ()
    modules = {key: unwrapped(part) for key, part in parts if isinstance(part, torch.nn.Module)}
    if len({id(module) for module in modules.values()}) > 1:
        raise RefusedError(
            f"the file contains the modules {', '.join(map(str, modules))}, but must contain only one",
            where=str(path),
            fix=f"save only one: torch.save(torch.load({path.name!r}, weights_only=False)[{next(iter(modules))!r}], "
            "'model.pt')",
        )
    module = next(iter(modules.values()), None)
    return fill(value, path, options) if module is None else Loaded(module)
