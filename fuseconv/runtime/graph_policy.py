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
    """How the caller makes a call: DIRECT calls the runner, and REPLAY replays the graph of the call's input shapes.

    TIMED_DIRECT and TIMED_REPLAY do the same, and the caller reports the time with `Policy.timed` once it is known.
    CAPTURE means a direct call followed by a capture. DROP_ALL means that all graphs are dropped before a direct call.
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
        """Returns how the caller must make a call.

        Args:
            key: the shapes of the call's inputs.
            contended: whether a replay would have to wait for a replay on another stream.
        """

    def timed(self, key: K_contra, contended: bool, replayed: bool, seconds: float) -> bool:
        """Records the time of a timed call, and returns whether the caller must drop the key's graph.

        Args:
            key: the shapes of the call's inputs.
            contended: the value that `step` received for this call.
            replayed: whether the call was a replay. False for a direct call.
            seconds: the time of the call in seconds.
        """

    def room(self, key: K_contra, size: int) -> tuple[object, ...] | None:
        """Returns the keys of the graphs that the caller must drop before it captures a graph of `size` bytes.

        Returns None if the caller must not capture the graph.
        """

    def captured(self, key: K_contra, size: int, total: int, seconds: float) -> bool:
        """Records a capture.

        Args:
            key: the shapes of the captured call's inputs.
            size: the bytes of the new graph alone.
            total: the bytes of all graphs, including the memory that the graphs share.
            seconds: the duration of the capture in seconds.

        Returns:
            False if the graphs now exceed the memory limit. The caller must then drop all graphs.
        """


class AtFirstSight:
    """A policy that captures every shape at its first call. Evicts the least recently used graphs to make room."""

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
        """Ignores the time and returns False, because this policy keeps a graph however slow its replays are."""
        return False

    def room(self, key: Hashable, size: int) -> tuple[object, ...]:  # noqa: ARG002
        """Evicts the least recently used graphs until a graph of `size` bytes fits, and returns their keys."""
        dropped = []
        while self._sizes and (len(self._sizes) >= self._limit or sum(self._sizes.values()) + size > self._memory):
            dropped.append(oldest := next(iter(self._sizes)))
            del self._sizes[oldest]
        return tuple(dropped)

    def captured(self, key: Hashable, size: int, total: int, seconds: float) -> bool:  # noqa: ARG002
        """Records a new graph and returns True. If the graphs now exceed the limit, forgets all and returns False."""
        self._sizes[key] = size
        if total > self._memory:
            self._sizes.clear()
        return total <= self._memory
