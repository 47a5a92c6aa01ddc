"""Reads intermediate values of a target, from a newly written artifact or from the artifact in a bundle."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from fuseconv.blaming.listing import Listing, Place, changes, placed
from fuseconv.blaming.rerun import run_piece
from fuseconv.blaming.through import called, cut, written
from fuseconv.program.captured import Program
from fuseconv.targets import TARGETS


def listing_of(target: str, path: Path, device: str) -> Listing:
    """Reads an artifact and returns its list of ops. Raises KeyError for a target of machine code."""
    if target in ("onnx", "onnx-plugin"):
        from fuseconv.blaming.onnx_listing import OnnxListing

        return OnnxListing(path, device)
    from fuseconv.blaming.export_listing import ExportListing
    from fuseconv.blaming.script_listing import ScriptListing

    return {"export": ExportListing, "torchscript": ScriptListing}[target](path, device)


class Tapped:
    """A newly written artifact whose outputs are the values of chosen nodes.

    Use it as a context manager: its file exists only inside the `with` block.

    Attributes:
        target: the name of the target for which the artifact is written.
        names: the names of the nodes whose values the artifact returns, in order.
    """

    def __init__(self, target: str, program: Program, names: Sequence[str], op_files: tuple[Path, ...] = ()) -> None:
        self.target = target
        self.names = tuple(names)
        self._program = cut(program, names)
        self._op_files = op_files
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        """Returns this object. The artifact is written when `path` is first read."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Removes the artifact."""
        self._folder.cleanup()

    @cached_property
    def path(self) -> Path:
        """The path of the artifact. The first access writes the artifact.

        Raises:
            UnsupportedError: the target cannot express the program.
            UpstreamError: the exporter or compiler failed.
        """
        return written(self.target, self._program, Path(self._folder.name), self._op_files)

    @cached_property
    def listing(self) -> Listing:
        """The artifact as a list of ops."""
        return listing_of(self.target, self.path, self._program.contract.device)

    def values(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Runs the artifact, and returns the values of the nodes in the order of `names`."""
        return called(TARGETS[self.target].load(self.path, self._program.contract.device), inputs)


@dataclass(frozen=True)
class Artifact:
    """The artifact of a target in a bundle.

    Attributes:
        target: the name of the target.
        path: the file from which the artifact is loaded.
        device: the device on which the artifact runs, `cpu` or `cuda`.
    """

    target: str
    path: Path
    device: str

    @property
    def is_readable(self) -> bool:
        """Whether the artifact can be read as a list of ops. False if it is machine code."""
        return not TARGETS[self.target].SPEC.machine_code

    @cached_property
    def listing(self) -> Listing:
        """The artifact as a list of ops."""
        return listing_of(self.target, self.path, self.device)

    def places(self, tapped: Tapped, outputs: Sequence[str] = ()) -> Mapping[str, Place | None]:
        """Finds in this artifact the values that a newly written artifact of the same program returns.

        Args:
            tapped: the newly written artifact, whose outputs are the values to find.
            outputs: the names of the nodes that the program returns. Their places are known from this artifact's
                outputs. Empty to find these values by alignment, like all others.

        Returns:
            The place of each value, by the name of its node. None for a value that is not found.
        """
        found = dict(zip(tapped.names, placed(tapped.listing, self.listing), strict=True))
        returned = dict(zip(outputs, self.listing.returned, strict=True)) if outputs else {}
        return found | {name: place for name, place in returned.items() if name in found and place is not None}

    def values(self, places: Sequence[Place], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Runs the part of the artifact that computes the values at `places`, and returns these values."""
        piece = self.listing.cut(places)
        data = torch.frombuffer(bytearray(piece.data), dtype=torch.uint8)
        return run_piece(self.target, data, piece.weights, inputs)


def changed_at(artifact: Artifact, tapped: Tapped, name: str) -> str:
    """Describes one op in which an artifact differs from a newly written artifact of the same target.

    Args:
        artifact: the artifact in the bundle, whose ops are described.
        tapped: the newly written artifact with which the ops are compared.
        name: the name of a node. The last difference at or before this node's op is described. If there is none, or if
            the node is not found, the first difference in the artifact is described.

    Returns:
        The description. Empty if the ops of the two artifacts do not differ.
    """
    place = artifact.places(tapped).get(name)
    every = changes(tapped.listing, artifact.listing)
    near = [text for at, text in every.items() if place is not None and at <= place[0]]
    return next(iter(reversed(near)), next(iter(every.values()), ""))
