"""An artifact as a list of ops, so that its values can be returned and compared with those of another artifact.

Two artifacts of one program have the same ops in the same order, whatever their values are called. So a value of one is
found in the other by its position, also where ops were added, removed or changed.
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
"""A value of an artifact: the position of the op that computes it, and which of its results it is."""

NOTHING: Mapping[Place, torch.Tensor] = MappingProxyType({})

COPIES = frozenset({"Identity", "aten::clone", "aten.clone.default"})
"""Ops that return the value of their operand."""


@dataclass(frozen=True)
class Piece:
    """A part of an artifact that is an artifact itself.

    Attributes:
        data: the file.
        weights: what it takes after the inputs: the weights, unless it contains them, and the given values.
    """

    data: bytes
    weights: tuple[torch.Tensor, ...] = ()


class Listing(ABC):
    """The ops of an artifact. A subclass reads one format."""

    @abstractmethod
    def __init__(self, path: Path, device: str) -> None:
        """Reads an artifact.

        Raises:
            RefusedError: it is damaged.
        """

    @cached_property
    @abstractmethod
    def ops(self) -> list[str]:
        """The names of the ops, in order."""

    @cached_property
    @abstractmethod
    def returned(self) -> list[Place | None]:
        """The values that the artifact returns. None for an input or a weight."""

    @abstractmethod
    def operands(self, at: int) -> list[Place | None]:
        """Returns the values that an op takes. None for an input or a weight."""

    @abstractmethod
    def arguments(self, at: int) -> list[str]:
        """Returns what else an op is given, one text each: attributes, numbers, and weights with a hash of them."""

    @abstractmethod
    def cut(self, ends: Sequence[Place], given: Mapping[Place, torch.Tensor] = NOTHING) -> Piece:
        """Returns the part that computes values, and returns them in the given order.

        Args:
            ends: the values.
            given: values that it is given, and does not compute.
        """

    def needed(self, end: Place, given: Mapping[Place, torch.Tensor]) -> dict[Place, torch.Tensor]:
        """Returns those of the given values from which a value is computed."""
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
        """Returns an op with its arguments, without the names of values."""
        return f"{self.ops[at]}({', '.join(self.arguments(at))})"


def placed(written: Listing, artifact: Listing) -> list[Place | None]:
    """Returns where an artifact has the values that another one of the same program returns. None if unknown."""
    twins = _twins(written, artifact)
    found: list[Place | None] = []
    for place in written.returned:
        at: Place | None = place
        while at is not None and at[0] not in twins:
            at = written.operands(at[0])[0] if written.ops[at[0]] in COPIES else None
        found.append(None if at is None else (twins[at[0]], at[1]))
    return found


def changes(written: Listing, artifact: Listing) -> dict[int, str]:
    """Returns how the ops of an artifact differ from those of another one of a program: a sentence by position."""
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
    """Returns the text of a weight among the arguments of an op: its name and a hash of its values."""
    plain = tensor.detach().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return f"{name} with sha256 {sha256(data).hexdigest()[:12]}"
