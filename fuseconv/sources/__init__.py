"""Reads a model from disk in any supported format: `read(path)` returns a `Subject`.

The format is detected from the content, never from the file name. A source that runs code while it is read is rejected
unless `Options.trust` contains this kind of code.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch

from fuseconv.contract.options import Options
from fuseconv.errors import FileError, UpstreamError, UsageError
from fuseconv.sources import archive, generating, huggingface, pickled, state_dict, torchscript
from fuseconv.sources.methods import method_of
from fuseconv.sources.sniffing import sniff
from fuseconv.sources.subject import Loaded, Subject, prepare
from fuseconv.sources.wrappers import unwrapped
from fuseconv.untrusted import hub
from fuseconv.untrusted.files import check_text, leads_somewhere

__all__ = ["FORMS", "Options", "Subject", "check_device", "read", "sniff"]

FORMS: Mapping[str, Callable[[Path, Options], Loaded]] = {
    "huggingface": huggingface.load,
    "pickle": pickled.load,
    "pt2": archive.load,
    "state-dict": state_dict.load,
    "torchscript": torchscript.load,
}

_BUILT = frozenset({"pickle", "state-dict"})
"""The formats whose files may contain only tensors. For such a file, `Options.model` builds the module."""


_MODULES = frozenset({"huggingface", *_BUILT})
"""The formats from which a module with all of its methods is read. The other formats contain only `forward`."""


def read(path: str | Path, *, options: Options | None = None) -> Subject:
    """Reads a model from disk and prepares it for the capture.

    Args:
        path: the path of a .pt2 archive, a TorchScript archive, a pickled module, a state dict, or a Hugging Face
            folder; or `hf://OWNER/NAME@REVISION`, a model on a Hugging Face hub, which is downloaded.
        options: the settings for reading the model, one per command-line flag. None for the defaults.

    Raises:
        FileError: the file does not exist or cannot be read, or the hub does not provide it.
        RefusedError: the source is damaged or malicious, or would run code that is not trusted.
        UnsupportedError: the source is valid, but cannot be converted.
        UpstreamError: torch or transformers cannot read the source, or the device is not available.
        UsageError: an option is missing or does not apply to the model.
    """
    path = Path(path)
    options = options or Options()
    found = hub.reference(path)
    snapshot = None if found is None else hub.download(found, code="code" in options.trust)
    place = path if snapshot is None else snapshot.folder
    if not leads_somewhere(place):
        raise FileError.absent(path)
    check_text(path)
    if os.environ.get("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"):
        logging.getLogger("fuseconv").warning(
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set, but fuseconv ignores it: a source that runs code needs --trust"
        )
    check_device(options.device)
    form = sniff(place)
    if options.model is not None and form not in _BUILT:
        raise UsageError(
            f"the source has the format {form}, which already contains the model",
            where=f"--model {options.model}",
            fix="remove --model",
        )
    loaded = FORMS[form](place, options)
    loaded = replace(loaded, module=unwrapped(loaded.module))
    if options.method is not None and generating.is_known(loaded.module, options.method):
        loaded = generating.load(loaded.module, loaded.inputs, options)
    elif options.method is not None:
        if form not in _MODULES:
            raise UsageError(
                f"the source has the format {form}, whose only method is forward",
                where=f"--method {options.method}",
                fix="save the module itself, with torch.save or as a state dict",
            )
        loaded = Loaded(method_of(loaded.module, options.method, path, generating.known_methods(loaded.module)))
    return replace(prepare(loaded, form, path, options), snapshot=snapshot)


def check_device(device: str) -> None:
    """Checks that this machine has the device, `cpu` or `cuda`.

    Raises:
        UpstreamError: the device is `cuda`, and torch finds no CUDA device.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise UpstreamError(
            f"torch {torch.__version__} finds no CUDA device",
            where="--device cuda",
            fix="convert with --device cpu, or install a CUDA build of torch and check nvidia-smi",
        )
