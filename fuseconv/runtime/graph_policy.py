"""Which calls are captured in CUDA graphs and which graphs are dropped: what a policy answers, and the plain policy.

Nothing here imports torch. csrc/runtime/graph_policy.h is the same in C++.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum, auto
from typing import Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class Step(Enum):
    """How a call is made. What a timed call took is reported to the policy, once it is known.

    CAPTURE is a direct call and a capture after it, and DROP_ALL a direct call after all graphs were dropped.
    """

    DIRECT = auto()
    TIMED_DIRECT = auto()
    REPLAY = auto()
    TIMED_REPLAY = auto()
    CAPTURE = auto()
    DROP_ALL = auto()


class Policy(Protocol[K_contra]):
    """Decides for calls by their key, the shapes of the inputs. The caller orders its calls by a lock.

    Attributes:
        rest: the number of the next calls that are made directly and need not be shown to the policy.
    """

    rest: int

    def step(self, key: K_contra, contended: bool) -> Step:
        """Returns how a call is made.

        Args:
            key: the shapes of its inputs.
            contended: whether a replay would wait for one of another stream.
        """

    def timed(self, key: K_contra, contended: bool, replayed: bool, seconds: float) -> bool:
        """Reports what a timed call took. Returns whether the graph of the key is to be dropped."""

    def room(self, key: K_contra, size: int) -> tuple[object, ...] | None:
        """Returns the keys whose graphs make room for a new one of `size` bytes, or None if it is not worth it."""

    def captured(self, key: K_contra, size: int, total: int, seconds: float) -> bool:
        """Reports a capture: the graph's own bytes, those of all graphs with what they share, and what it took.

        Returns:
            False if the graphs exceed the limit now, and all are to be dropped.
        """


class AtFirstSight:
    """Captures every shape when it is first called, and drops the least recently used ones."""

    def __init__(self, limit: int, memory: int) -> None:
        """Starts without graphs.

        Args:
            limit: the maximum number of graphs.
            memory: the maximum number of bytes that they hold.
        """
        self.rest = 0
        self._limit = limit
        self._memory = memory
        self._sizes: dict[object, int] = {}

    def step(self, key: Hashable, contended: bool) -> Step:  # noqa: ARG002
        """Returns how a call is made."""
        if key not in self._sizes:
            return Step.CAPTURE
        self._sizes[key] = self._sizes.pop(key)
        return Step.REPLAY

    def timed(self, key: Hashable, contended: bool, replayed: bool, seconds: float) -> bool:  # noqa: ARG002
        """Keeps every graph, whatever a call took."""
        return False

    def room(self, key: Hashable, size: int) -> tuple[object, ...]:  # noqa: ARG002
        """Returns the least recently used keys, as many as must go."""
        dropped = []
        while self._sizes and (len(self._sizes) >= self._limit or sum(self._sizes.values()) + size > self._memory):
            dropped.append(oldest := next(iter(self._sizes)))
            del self._sizes[oldest]
        return tuple(dropped)

    def captured(self, key: Hashable, size: int, total: int, seconds: float) -> bool:  # noqa: ARG002
        """Adds a graph, or forgets all of them if they exceed the limit."""
        self._sizes[key] = size
        if total > self._memory:
            self._sizes.clear()
        return total <= self._memory
