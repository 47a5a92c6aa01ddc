"""Our side of bench/models.py: a module converted in this process, and a builder of calls for each target it has."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from clock import Call, captured
from peers import Problem, packaged
from torch import Tensor, nn

from fuseconv import parity, pipeline
from fuseconv.bundle import open_bundle
from fuseconv.runtime import load
from fuseconv.sources import Options
from fuseconv.targets import aoti


def converted(
    module: nn.Module, inputs: tuple[Tensor, ...], targets: Sequence[str], device: str, scratch: Path
) -> pipeline.Conversion:
    """Converts a module on the CPU as `fuseconv convert` does, with the default rules and these inputs as its example.

    Raises:
        FuseconvError: it does not convert, or a target fails parity, on these inputs or on others.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        source = Path(folder, "model.pt2")
        torch.export.save(torch.export.export(module, inputs, strict=False), source)
        return pipeline.convert(
            source, target=targets, output=scratch / "model.fuseconv", options=Options(device=device)
        )


def builder(bundle: Path, target: str) -> Callable[[Problem, bool], Call]:
    """Returns what builds calls of one of a bundle's targets, as `peers` has them."""

    def build(problem: Problem, graph: bool) -> Call:
        model = load(bundle, target)  # the op library too
        if graph and target == aoti.NAME:
            return packaged(bundle / open_bundle(bundle).targets[target], problem, graph)
        call: Call = lambda: model(*problem.inputs)  # noqa: E731
        return captured(call) if graph else call

    return build


def example(bundle: Path) -> parity.Reference:
    """Returns the reference of the inputs that the bundle was converted with."""
    return parity.read_reference(bundle / parity.REFERENCE, open_bundle(bundle).contract)[0]


def identity(bundle: Path) -> str:
    """Returns 12 digits that change with the plan and with the op libraries."""
    manifest = open_bundle(bundle)
    parts = [(bundle / name).read_bytes() for name in (pipeline.PLAN, *manifest.libraries)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]
