"""Processes of their own for what is measured: forks of one that has only imported torch and what converts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(["torch", "transformers", "fuseconv.pipeline.convert"])


def process() -> ProcessPoolExecutor:
    """Returns a process that runs what is submitted, with the environment variables of this moment."""
    return ProcessPoolExecutor(1, _FORKS, _begin, (dict(os.environ),))


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function returns in a process of its own."""
    with process() as pool:
        return pool.submit(function, *arguments).result()


def _begin(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
