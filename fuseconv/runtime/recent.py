"""A dict with a limited number of entries, which drops the least recently used one. No torch."""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Up to `limit` values by key. The least recently used one is dropped."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def items(self) -> list[tuple[K, V]]:
        """Returns keys and values, least recently used first."""
        return list(self._values.items())

    def get(self, key: K) -> V | None:
        """Returns the value of a key and marks it as used, or returns None."""
        if key not in self._values:
            return None
        self._values[key] = value = self._values.pop(key)
        return value

    def put(self, key: K, value: V) -> V | None:
        """Adds a value under a new key. Returns the value that was dropped, if any."""
        self._values[key] = value
        return self._values.pop(next(iter(self._values))) if len(self._values) > self._limit else None
