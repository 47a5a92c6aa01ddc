"""Prepares calls of a bundle's original model for timing, in eager mode or compiled by torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from fuseconv import sources
from fuseconv.bundle.manifest import Manifest
from fuseconv.errors import UpstreamError
from fuseconv.measure.turns import Call, Inputs
from fuseconv.parity import verification
from fuseconv.program.calling import arguments
from fuseconv.sources import Options, Subject


def read_original(model: Path, manifest: Manifest, options: Options) -> Subject:
    """Reads the model from which a bundle was converted, and moves the model to the bundle's device.

    Raises:
        FuseconvError: the model cannot be read, or is not the model from which the bundle was converted.
    """
    return sources.read(model, options=verification.as_converted(manifest, model, options))


def original_calls(subject: Subject, way: str, inputs: Sequence[Inputs]) -> list[Call]:
    """Returns a function per tuple of inputs that calls the original model. Calls each function once as a warm-up.

    Raises:
        UpstreamError: the model fails, or torch.compile compiles no part of the model.
    """
    before = _compiled() if way == "compile" else 0
    try:
        module = subject.module if way == "eager" else torch.compile(subject.module)
        calls = [_bound(module, subject.call, tensors) for tensors in inputs]
        with torch.no_grad():
            for call in calls:
                call()
    except Exception as error:
        reason = str(error).strip().partition("\n\n")[0]  # torch.compile appends advice for its developers
        raise UpstreamError(f"the original model failed: {reason}", where=f"the peer {way}") from error
    if way == "compile" and _compiled() == before:
        raise UpstreamError(
            "torch.compile compiled no part of the original model",
            where=f"the peer {way}",
            fix="compare with the peer eager instead",
        )
    return calls


def _bound(module: Callable[..., object], names: Sequence[str], tensors: Inputs) -> Call:
    positional, keywords = arguments(names, tensors)
    return partial(module, *positional, **keywords)


def _compiled() -> int:
    """Returns the number of distinct graphs that torch.compile has compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
