"""Represents an artifact as a list of ops, so that its intermediate values can be compared with another artifact's.

Two artifacts of one program call the same ops in the same order, even if the names of their values differ. A value of
one artifact can therefore be found in the other by its position. The two lists are aligned first, so that the value is
found even if ops were added, removed or changed. The place of a value is the position of the op that computes it, and
the index of the value among the results of this op.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import torch

Place = tuple[int, int]
"""The place of a value in an artifact: the position of the op that computes it, and the index of the op's result."""

NOTHING: Mapping[Place, torch.Tensor] = MappingProxyType({})

COPIES = frozenset({"Identity", "aten::clone", "aten.clone.default"})
"""Ops that return a copy of their operand."""


@dataclass(frozen=True)
class Piece:
    """A part of an artifact that can be loaded and run as an artifact itself.

    Attributes:
        data: the content of the artifact's file.
        weights: the tensors that are passed to the part after its inputs: first its weights, unless the file contains
            them, then the given intermediate values.
    """

    data: bytes
    weights: tuple[torch.Tensor, ...] = ()


class Listing(ABC):
    """An artifact as a list of ops. Each subclass reads one artifact format."""

    @abstractmethod
    def __init__(self, path: Path, device: str) -> None:
        """Reads an artifact.

        Raises:
            RefusedError: the artifact is damaged.
        """

    @cached_property
    @abstractmethod
    def ops(self) -> list[str]:
        """The names of the ops, in execution order."""

    @cached_property
    @abstractmethod
    def returned(self) -> list[Place | None]:
        """The place of each value that the artifact returns. None for an input or a weight."""

    @abstractmethod
    def operands(self, at: int) -> list[Place | None]:
        """Returns the place of each operand of the op at position `at`. The place of an input or a weight is None."""

    @abstractmethod
    def arguments(self, at: int) -> list[str]:
        """Returns the other arguments of an op as strings: attributes, numbers, and weights with their hashes."""

    @abstractmethod
    def cut(self, ends: Sequence[Place], given: Mapping[Place, torch.Tensor] = NOTHING) -> Piece:
        """Returns the part of the artifact that computes and returns some intermediate values.

        Args:
            ends: the places of the values to return, in order.
            given: values that become inputs of the part, so that the part does not compute them, by place.
        """

    def needed(self, end: Place, given: Mapping[Place, torch.Tensor]) -> dict[Place, torch.Tensor]:
        """Returns the given values on which the value at `end` depends, by place."""
        seen, queue, found = {end[0]}, [end[0]], dict[Place, torch.Tensor]()
        while queue:
            for place in self.operands(queue.pop()):
                if place is None:
                    continue
                if place in given:
                    found[place] = given[place]
                elif place[0] not in seen:
                    seen.add(place[0])
                    queue.append(place[0])
        return found

    def text(self, at: int) -> str:
        """Returns an op and its non-tensor arguments as one string, without the names of values."""
        return f"{self.ops[at]}({', '.join(self.arguments(at))})"


def placed(written: Listing, artifact: Listing) -> list[Place | None]:
    """Finds in one artifact the values that a newly written artifact of the same program returns.

    Args:
        written: the newly written artifact.
        artifact: the artifact in which to find the values.

    Returns:
        The place in `artifact` of each value. None for a value that is not found.
    """
    twins = _twins(written, artifact)
    found: list[Place | None] = []
    for place in written.returned:
        at: Place | None = place
        while at is not None and at[0] not in twins:
            at = written.operands(at[0])[0] if written.ops[at[0]] in COPIES else None
        found.append(None if at is None else (twins[at[0]], at[1]))
    return found


def changes(written: Listing, artifact: Listing) -> dict[int, str]:
    """Returns a description of each op of `artifact` that differs from `written`, by its position in `artifact`."""
    twins = _twins(written, artifact)
    found = {}
    for at, twin in twins.items():
        ours, theirs = written.arguments(at), artifact.arguments(twin)
        if ours != theirs:
            here, there = (", ".join(one for one in mine if one not in other) for mine, other in _both(ours, theirs))
            found[twin] = f"{artifact.ops[twin]} has {there or 'nothing'} where {here or 'nothing'} is written"
    known = set(twins.values())
    for at in range(len(artifact.ops)):
        if at not in known and artifact.ops[at] not in COPIES:
            found[at] = f"{artifact.text(at)} is not written there"
    return dict(sorted(found.items()))


def _both(one: list[str], other: list[str]) -> tuple[tuple[list[str], list[str]], tuple[list[str], list[str]]]:
    return (one, other), (other, one)


def _twins(written: Listing, artifact: Listing) -> dict[int, int]:
    blocks = SequenceMatcher(None, written.ops, artifact.ops, autojunk=False).get_matching_blocks()
    return {one.a + at: one.b + at for one in blocks for at in range(one.size)}


def hashed(name: str, tensor: torch.Tensor) -> str:
    """Returns a string that identifies a weight by its name and by the start of the SHA-256 of its data."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return f"{name} with sha256 {sha256(data).hexdigest()[:12]}"
