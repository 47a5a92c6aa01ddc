"""Reads TorchScript archives and converts them to exported programs.

Reading an archive may run code from it, so the user must trust the file.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from fuseconv.contract.options import Options
from fuseconv.errors import UnsupportedError, UpstreamError
from fuseconv.sources.flat import drop_detach
from fuseconv.sources.subject import CASTS, Loaded, settle
from fuseconv.untrusted.loads import require_loads


def load(path: Path, options: Options) -> Loaded:
    """Reads a traced or scripted module and converts it to an exported program.

    Raises:
        RefusedError: TorchScript is not trusted.
        UnsupportedError: the module has no equivalent exported program.
        UpstreamError: torch cannot read the archive or crashes on it.
        UsageError: the inputs are not specified.
    """
    from torch._export.converter import TS2EPConverter

    options.require("torchscript", "a TorchScript archive", str(path))
    require_loads(path)
    try:
        script = torch.jit.load(path, map_location=options.device).eval()  # type: ignore[no-untyped-call]
    except (
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
    ) as error:  # any error of its C++ code for a damaged archive
        raise UpstreamError(
            f"torch cannot read the archive: {error}", where=str(path), fix="save it again with torch.jit.save"
        ) from error
    if options.dtype is not None:
        script = CASTS[options.dtype](script)
    arguments = tuple(argument.name for argument in script.forward.schema.arguments[1:])
    settled = settle(Loaded(script, parameters=arguments, by_keyword=True), path, options)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "Manually populate", UserWarning
            )  # a buffer that is used only in training
            exported = TS2EPConverter(script, settled.examples, {}).convert()
    except Exception as error:
        raise UnsupportedError(
            f"the TorchScript module has no equivalent exported program: {error}",
            where=str(path),
            fix="convert the Python model from which it was created: save its state dict and give --model",
        ) from error
    drop_detach(exported)
    contract = settled.contract
    return Loaded(exported.module(), contract.inputs, settled.examples, (), contract.names, original=script)
