"""Functions compiled by torch.compile(backend="fuseconv"), and what the backend records and logs of them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

import fuseconv


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Starts and ends without compiled graphs, and keeps random numbers and torch's own warnings to itself."""
    torch._dynamo.reset()
    fuseconv.compiled_graphs(forget=True)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # Of torch and transformers, about their own use of torch.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
        torch.manual_seed(0)
        yield
    torch._dynamo.reset()


def compiled(model: Any, inner: str = "eager", dynamic: bool | None = None, **options: Any) -> Any:
    return torch.compile(model, backend=fuseconv.dynamo_backend, dynamic=dynamic, options={"inner": inner, **options})


def fused() -> dict[str, int]:
    """How often each rule was applied in the graphs compiled since the last call."""
    graphs = fuseconv.compiled_graphs(forget=True)
    assert not any(graph.left_alone for graph in graphs)
    counts: dict[str, int] = {}
    for graph in graphs:
        for rule, count in graph.plan.counts().items():
            counts[rule] = counts.get(rule, 0) + count
    return counts


def near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


class Logged(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")


@contextmanager
def logged() -> Iterator[list[str]]:
    """Yields the lines that fuseconv logs, each with its level."""
    logger, handler = logging.getLogger("fuseconv"), Logged()
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
