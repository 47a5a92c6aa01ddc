"""A target that returns the values at borders: written again as one artifact, or in the file of a bundle itself."""

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
    """Reads an artifact as a list of ops. Raises KeyError for a target whose code cannot be read back."""
    if target in ("onnx", "onnx-plugin"):
        from fuseconv.blaming.onnx_listing import OnnxListing

        return OnnxListing(path, device)
    from fuseconv.blaming.export_listing import ExportListing
    from fuseconv.blaming.script_listing import ScriptListing

    return {"export": ExportListing, "torchscript": ScriptListing}[target](path, device)


class Tapped:
    """The artifact of a program that returns the values of nodes. A context, in which its file exists.

    Attributes:
        target: the target.
        names: the nodes.
    """

    def __init__(self, target: str, program: Program, names: Sequence[str], op_files: tuple[Path, ...] = ()) -> None:
        self.target = target
        self.names = tuple(names)
        self._program = cut(program, names)
        self._op_files = op_files
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Self:
        """Returns itself. The artifact is written when it is needed."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Removes the artifact."""
        self._folder.cleanup()

    @cached_property
    def path(self) -> Path:
        """The artifact, which is written at the first use.

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
        """Returns the values of the nodes for a call."""
        return called(TARGETS[self.target].load(self.path, self._program.contract.device), inputs)


@dataclass(frozen=True)
class Artifact:
    """The artifact of a target in a bundle.

    Attributes:
        target: the target.
        path: its path.
        device: `cpu` or `cuda`.
    """

    target: str
    path: Path
    device: str

    @property
    def is_readable(self) -> bool:
        """Whether its ops can be read back: everything but machine code."""
        return not TARGETS[self.target].SPEC.machine_code

    @cached_property
    def listing(self) -> Listing:
        """The artifact as a list of ops."""
        return listing_of(self.target, self.path, self.device)

    def places(self, tapped: Tapped, outputs: Sequence[str] = ()) -> Mapping[str, Place | None]:
        """Returns where the artifact has the values that another one of the same program returns, by node.

        Args:
            tapped: the other artifact.
            outputs: the nodes that the program returns. Their values are what the artifact returns.
        """
        found = dict(zip(tapped.names, placed(tapped.listing, self.listing), strict=True))
        returned = dict(zip(outputs, self.listing.returned, strict=True)) if outputs else {}
        return found | {name: place for name, place in returned.items() if name in found and place is not None}

    def values(self, places: Sequence[Place], inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Returns values of the artifact for a call."""
        piece = self.listing.cut(places)
        data = torch.frombuffer(bytearray(piece.data), dtype=torch.uint8)
        return run_piece(self.target, data, piece.weights, inputs)


def changed_at(artifact: Artifact, tapped: Tapped, name: str) -> str:
    """Returns how an artifact differs from what is written again: at the op of a node, else at the first op."""
    place = artifact.places(tapped).get(name)
    every = changes(tapped.listing, artifact.listing)
    near = [text for at, text in every.items() if place is not None and at <= place[0]]
    return next(iter(reversed(near)), next(iter(every.values()), ""))
