"""Our side of bench/models.py: a model converted, and a builder of calls for each target it has."""

from __future__ import annotations

import argparse
import hashlib
import logging
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from apart import apart
from cases import DTYPES
from clock import Call, captured
from peers import Problem, session
from record import Row
from source import saved
from zoo import ENTRIES
from zoo_parts import Entry

from fuseconv.bundle.manifest import PLAN, open_bundle
from fuseconv.commands.progress import shown
from fuseconv.ops.library import PLUGINS
from fuseconv.parity.reference import REFERENCE, Reference, read_reference
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.tactics import tune
from fuseconv.runtime.model import load
from fuseconv.runtime.tactics import has_tactics
from fuseconv.targets import TARGETS


@dataclass(frozen=True)
class Made:
    """A conversion, as far as it matters here.

    Attributes:
        bundle: the folder.
        targets: those written.
        skipped: why others were not.
        fusions: how many sites were rewritten.
        rejected: why matches failed their numerical test, by rule.
    """

    bundle: Path
    targets: tuple[str, ...]
    skipped: dict[str, str]
    fusions: int
    rejected: dict[str, str]

    def row(self) -> Row:
        """Returns what a row says of it."""
        rejected = {"rejected": self.rejected} if self.rejected else {}
        return {"fusions": self.fusions, **rejected, "artifact": identity(self.bundle)}


def converted(
    entry: Entry, dtype: str, arguments: argparse.Namespace, scratch: Path, *, changing: bool = False
) -> Made:
    """Converts a model of the zoo in a process of its own, as a user does: what is chosen by timing there stays there.

    Args:
        entry: the model.
        dtype: of its weights.
        arguments: `layers`, `targets`, `device` and `tune`.
        scratch: the folder of the bundle.
        changing: whether its axes are dynamic.

    Raises:
        FuseconvError: it does not convert, or a target fails parity, on the inputs that are timed or on others.
    """
    made: Made = apart(_convert, entry.name, entry.shape, dtype, arguments, scratch, changing)
    return made


def _convert(
    name: str, shape: tuple[int, ...], dtype: str, arguments: argparse.Namespace, scratch: Path, changing: bool
) -> Made:
    logging.basicConfig()
    logging.getLogger("fuseconv").setLevel(logging.INFO)  # why it looks for a fault, which takes minutes
    entry = replace(next(entry for entry in ENTRIES if entry.name == name), shape=shape)
    module, inputs = entry.made(DTYPES[dtype], arguments.layers)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=scratch) as folder:
        source, options = saved(module, inputs, entry.axes if changing else (), Path(folder), arguments.device)
        done = convert(
            source,
            target=arguments.targets,
            output=scratch / "model.fuseconv",
            options=options,
            tune=arguments.tune,
            progress=shown,
        )
    written = tuple(one.target for one in done.written)
    return Made(
        done.bundle,
        written,
        {one.target: one.reason for one in done.left_out},
        len(done.plan.steps),
        {miss.rule: miss.reason for miss in done.plan.rejected},
    )


def tuned(bundle: Path, arguments: argparse.Namespace) -> None:
    """Measures the tactics of a bundle, where it has some, as `convert` does if it may measure."""
    manifest = open_bundle(bundle)
    if any(has_tactics(manifest, target) for target in manifest.targets):
        tune(bundle, seconds=arguments.tactics)


def builder(bundle: Path, target: str) -> Callable[[Problem, bool], Call]:
    """Returns what builds calls of one of a bundle's targets, as `peers` has them."""

    def build(problem: Problem, graph: bool) -> Call:
        model = load(bundle, target, cuda_graphs=False)  # the op library too
        artifact = bundle / open_bundle(bundle).targets[target]
        if graph and TARGETS[target].SPEC.runtime == "onnxruntime":  # its graphs are its own
            plugin = bundle / "lib" / PLUGINS[problem.device] if TARGETS[target].SPEC.plugin else None
            return session(artifact, problem, graph, plugin)
        call: Call = lambda: model(*problem.inputs)  # noqa: E731
        return captured(call) if graph else call

    return build


def example(bundle: Path) -> Reference:
    """Returns the reference of the inputs that the bundle was converted with."""
    return read_reference(bundle / REFERENCE, open_bundle(bundle).contract)[0]


def identity(bundle: Path) -> str:
    """Returns 12 digits that change with the plan and with the op libraries."""
    manifest = open_bundle(bundle)
    parts = [(bundle / name).read_bytes() for name in (PLAN, *manifest.libraries)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]
