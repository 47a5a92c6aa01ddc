"""Our side of bench/models.py: a model converted, and a builder of calls for each target it has."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from cases import DTYPES
from clock import Call, captured
from peers import Problem, session
from zoo import ENTRIES

from fuseconv.bundle.manifest import PLAN, open_bundle
from fuseconv.commands.progress import shown
from fuseconv.ops.library import PLUGINS
from fuseconv.parity.reference import REFERENCE, Reference, read_reference
from fuseconv.pipeline.convert import convert
from fuseconv.pipeline.tactics import tune
from fuseconv.runtime.model import load
from fuseconv.sources import Options
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


def converted(at: str, dtype: str, layers: int | None, targets: Sequence[str], device: str, scratch: Path) -> Made:
    """Converts a model of the zoo in a process of its own, as a user does: what is chosen by timing there stays there.

    Raises:
        FuseconvError: it does not convert, or a target fails parity, on the inputs that are timed or on others.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_convert, at, dtype, layers, tuple(targets), device, scratch).result()


def _convert(at: str, dtype: str, layers: int | None, targets: Sequence[str], device: str, scratch: Path) -> Made:
    (entry,) = (entry for entry in ENTRIES if entry.at == at)
    module, inputs = entry.made(DTYPES[dtype], layers)
    with torch.no_grad(), tempfile.TemporaryDirectory(dir=scratch) as folder:
        source = Path(folder, "model.pt2")
        torch.export.save(torch.export.export(module, inputs, strict=False), source)
        done = convert(
            source,
            target=targets,
            output=scratch / "model.fuseconv",
            options=Options(device=device),
            tune="none",  # every match is timed here; bench/tuned.py shows what tuning chooses
            progress=shown,
        )
    if device == "cuda":
        tune(done.bundle)
    written = tuple(one.target for one in done.written)
    return Made(
        done.bundle,
        written,
        {one.target: one.reason for one in done.left_out},
        len(done.plan.steps),
        {miss.rule: miss.reason for miss in done.plan.rejected},
    )


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
