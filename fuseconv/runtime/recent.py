"""A dict of the values that were used last. No torch."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Up to `limit` values by key; the one used longest ago makes room for a new one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> list[tuple[K, V]]:
        """Returns keys and values, the one used longest ago first."""
        return list(self._values.items())

    def get(self, key: K) -> V | None:
        """Returns the value of a key, which counts as a use, or None."""
        if key not in self._values:
            return None
        self._values[key] = value = self._values.pop(key)
        return value

    def put(self, key: K, value: V) -> V | None:
        """Adds a value under a new key; returns the one that makes room for it, if one does."""
        self._values[key] = value
        return self._values.pop(next(iter(self._values))) if len(self._values) > self._limit else None
