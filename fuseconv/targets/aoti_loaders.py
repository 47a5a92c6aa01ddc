"""Concurrent calls of an AOTInductor package: a package loaded several times, whose loaders share the weights.

A loader of torch that does not synchronize the host with the GPU allows one call at a time. A call launches a kernel
for each step of the model and returns before the GPU has computed them, so calls of several threads that wait for one
another leave the GPU idle.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Any

import torch

from fuseconv.targets.artifact import release

LIMIT = 4
"""The maximum number of loaders of a package. More do not pay: threads also wait for Python's lock and for the GPU."""


class Loaders:
    """The loaders of a package, each of which makes one call at a time.

    There is one loader until a call finds all of them busy. Then another loader is added in the background, up to the
    limit, because loading takes much longer than waiting for a call.

    Args:
        make: loads the package once more.
        limit: the maximum number of loaders.
        weights: the tensors that the loaders share, whose memory is freed with the loaders.
    """

    def __init__(self, make: Callable[[], Any], limit: int, weights: Collection[torch.Tensor] = ()) -> None:
        self._make = make
        self._limit = limit
        self._first = make()
        self._idle = [self._first]
        self._count = 1
        self._is_growing = False
        self._changed = threading.Condition()
        # A loader never releases the weights. A replaced file that is still mapped would keep its space until the
        # process ends.
        weakref.finalize(self, release, weights).atexit = False

    def run(self, inputs: list[torch.Tensor], *, capturing: bool) -> list[torch.Tensor]:
        """Calls the package once a loader is idle.

        Args:
            inputs: the inputs, which must be contiguous and aligned. The list is emptied.
            capturing: whether a CUDA graph is captured. Its calls are made by the first loader, which has loaded its
                kernels in the calls before: loading a kernel may end the capture.
        """
        loader = self._take(capturing)
        try:
            results: list[torch.Tensor] = loader.boxed_run(inputs)
        finally:
            with self._changed:
                self._idle.append(loader)
                self._changed.notify_all()
        return results

    def _take(self, capturing: bool) -> Any:
        with self._changed:
            while not self._idle or (capturing and self._first not in self._idle):
                if self._count < self._limit and not self._is_growing and not capturing:
                    self._is_growing = True
                    threading.Thread(target=self._grow).start()
                self._changed.wait()
            return self._idle.pop(self._idle.index(self._first) if capturing else -1)

    def _grow(self) -> None:
        """Adds a loader. If that fails, the thread reports the error, and calls go on with the existing loaders."""
        try:
            loader = self._make()
        except BaseException:
            self._limit = self._count
            raise
        with self._changed:
            self._idle.append(loader)
            self._count += 1
            self._is_growing = False
            self._changed.notify_all()
