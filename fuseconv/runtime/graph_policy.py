"""Decides which calls are captured in CUDA graphs and which graphs are dropped: the interface, and a simple policy.

This module does not import torch. csrc/runtime/graph_policy.h is the same in C++.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Step(Enum):
    """How a call is made. The time of a timed call is reported to the policy once the time is known.

    CAPTURE means a direct call followed by a capture. DROP_ALL means a direct call after all graphs are dropped.
    """

    DIRECT = auto()
    TIMED_DIRECT = auto()
    REPLAY = auto()
    TIMED_REPLAY = auto()
    CAPTURE = auto()
    DROP_ALL = auto()


class Policy(Protocol[K_contra]):
    """Decides how each call is made, from the call's key: the shapes of its inputs.

    The caller must hold a lock while it calls the methods.

    Attributes:
        rest: how many of the next calls are made directly without asking the policy.
    """

    rest: int

    def step(self, key: K_contra, contended: bool) -> Step:
        """Returns how a call is made.

        Args:
            key: the shapes of the call's inputs.
            contended: whether a replay would have to wait for a replay on another stream.
        """

    def timed(self, key: K_contra, contended: bool, replayed: bool, seconds: float) -> bool:
        """Records the time of a timed call. Returns whether the caller must drop the key's graph."""

    def room(self, key: K_contra, size: int) -> tuple[object, ...] | None:
        """Returns the keys of the graphs to drop for a new graph of `size` bytes. None if that is not worth it."""

    def captured(self, key: K_contra, size: int, total: int, seconds: float) -> bool:
        """Records a capture.

        Args:
            key: the shapes of the captured call's inputs.
            size: the bytes of the new graph alone.
            total: the bytes of all graphs, including the memory that the graphs share.
            seconds: the duration of the capture.

        Returns:
            False if the graphs now exceed the memory limit. The caller must then drop all graphs.
        """


class AtFirstSight:
    """Captures every shape at its first call, and drops the least recently used graphs."""

    def __init__(self, limit: int, memory: int) -> None:
        """Starts without graphs.

        Args:
            limit: the maximum number of graphs.
            memory: the maximum number of bytes that the graphs hold.
        """
        self.rest = 0
        self._limit = limit
        self._memory = memory
        self._sizes: dict[object, int] = {}

    def step(self, key: Hashable, contended: bool) -> Step:  # noqa: ARG002
        """Returns CAPTURE for a new key and REPLAY for a known key."""
        if key not in self._sizes:
            return Step.CAPTURE
        self._sizes[key] = self._sizes.pop(key)
        return Step.REPLAY

    def timed(self, key: Hashable, contended: bool, replayed: bool, seconds: float) -> bool:  # noqa: ARG002
        """Keeps every graph, however long a call took."""
        return False

    def room(self, key: Hashable, size: int) -> tuple[object, ...]:  # noqa: ARG002
        """Returns the least recently used keys, as many as must be dropped to make room."""
        dropped = []
        while self._sizes and (len(self._sizes) >= self._limit or sum(self._sizes.values()) + size > self._memory):
            dropped.append(oldest := next(iter(self._sizes)))
            del self._sizes[oldest]
        return tuple(dropped)

    def captured(self, key: Hashable, size: int, total: int, seconds: float) -> bool:  # noqa: ARG002
        """Records a new graph. Forgets all graphs if they now exceed the memory limit."""
        self._sizes[key] = size
        if total > self._memory:
            self._sizes.clear()
        return total <= self._memory
