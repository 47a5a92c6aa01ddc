"""Estimates the time of an op at given sizes: from measured tactics where they exist, else from a roofline model.

A tactic is a kernel choice (backend and configuration) for one problem size. A rung is one combination of dim sizes.

The estimate only ranks forms; the final choice is timed. The roofline model takes the larger of two times: the compute
time, at the rate of a large matrix product, and the memory time, at the rate of a large elementwise addition. To this
it adds the time of an op on a single element.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from fuseconv.contract.dtypes import SHORT_DTYPES
from fuseconv.graph.all_sizes import key_of
from fuseconv.graph.nodes import map_nodes
from fuseconv.program.captured import Program, dim_symbols

Problems = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The contents of tuning.json: maps a problem to its sizes, each size to its tactics, and each tactic to its time."""

SIZES = {"cpu": (512, 1 << 22), "cuda": (4096, 1 << 26)}
"""For each device type, the sizes at which rates are measured: the side of square matrices and a number of elements."""

_LINEAR = re.compile(r"; linear (?P<dtype>\w+) .*\bn (?P<n>\d+) k (?P<k>\d+)")


@dataclass(frozen=True)
class Rates:
    """The measured speed of a device for one dtype.

    Attributes:
        flops: the number of floating-point operations per microsecond.
        bytes: the number of bytes read or written per microsecond.
        call: the time of an op that computes a single element, in microseconds.
    """

    flops: float
    bytes: float
    call: float


def measure_rates(device: str, dtype: torch.dtype) -> Rates:
    """Measures the compute rate, the memory bandwidth and the call overhead of a device. Takes less than a second."""
    side, count = SIZES[device]
    matrix = torch.ones(side, side, device=device, dtype=dtype)
    large, one = torch.ones(count, device=device, dtype=dtype), torch.ones(1, device=device, dtype=dtype)
    product, copied = _microseconds(lambda: matrix @ matrix, device), _microseconds(lambda: large + large, device)
    call = _microseconds(lambda: one + one, device)
    return Rates(2 * side**3 / product, 2 * count * dtype.itemsize / copied, call)


def _microseconds(call: Callable[[], object], device: str) -> float:
    times = []
    for _ in range(9):
        start = time.perf_counter()
        for _ in range(3):
            call()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 3e-6)
    return statistics.median(times[2:])


@dataclass(frozen=True)
class Work:
    """The work of an op at given sizes. All attributes are 0 for a view.

    Attributes:
        flops: the number of floating-point operations.
        bytes: the number of bytes read and written.
        calls: 1, or 0 for a view.
    """

    flops: int
    bytes: int
    calls: int


@dataclass
class Cost:
    """Estimates the times of the ops of a program at several sizes.

    Attributes:
        program: the captured program.
        rungs: the sizes at which to estimate. Each rung maps the names of the dims to sizes.
        rates: the measured speed of the device.
        problems: the measured times of tactics, by problem and size. Empty if none were measured.
    """

    program: Program
    rungs: Sequence[Mapping[str, int]]
    rates: Rates
    problems: Problems = field(default_factory=dict)
    _done: dict[Any, tuple[Work, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Translates the size of each dim at each rung to a value of the dim's symbol in the graph."""
        dims, symbols = self.program.contract.dims(), dim_symbols(self.program)
        self._values = [
            {symbols[name]: size // dims[name].step for name, size in rung.items() if name in symbols}
            for rung in self.rungs
        ]

    def work(self, node: Node) -> tuple[Work, ...]:
        """Returns the work of an op call at each rung."""
        fakes = map_nodes([list(node.args), list(node.kwargs.values())], lambda operand: operand.meta["val"])
        key = (node.target, key_of(fakes), tuple(node.kwargs))
        if key not in self._done:
            args, kwargs = fakes[0], dict(zip(node.kwargs, fakes[1], strict=True))
            self._done[key] = tuple(_work(node.target, _at((args, kwargs), values)) for values in self._values)
        return self._done[key]

    def times(self, node: Node) -> tuple[float, ...]:
        """Returns the measured or estimated time of an op call at each rung, in microseconds."""
        known = [self._measured(node, values) for values in self._values]
        return tuple(
            self._roofline(work) if found is None else found for work, found in zip(self.work(node), known, strict=True)
        )

    def _roofline(self, work: Work) -> float:
        return max(work.flops / self.rates.flops, work.bytes / self.rates.bytes) + work.calls * self.rates.call

    def _measured(self, node: Node, values: Mapping[Any, int]) -> float | None:
        """Returns the time of the fastest measured tactic for a linear layer, in microseconds.

        If the number of rows was not measured, the time is interpolated between the nearest measured numbers of rows.
        Returns None if the op is not a linear layer, or if no measurements of its dtype and shape include these rows.
        """
        if node.target is not torch.ops.aten.linear.default or not self.problems:
            return None
        x, w = (_at(operand.meta["val"], values) for operand in node.all_input_nodes[:2])
        want = {"dtype": SHORT_DTYPES.get(str(x.dtype)), "n": str(w.shape[0]), "k": str(w.shape[1])}
        rows = max(math.prod(x.shape[:-1]), 1)
        known: dict[int, float] = {}
        for family, sizes in self.problems.items():
            if (found := _LINEAR.search(family)) and found.groupdict() == want:
                for size, tactics in sizes.items():
                    known[int(size)] = min([*(one["us"] for one in tactics.values()), known.get(int(size), math.inf)])
        below, above = (
            max((s for s in known if s <= rows), default=0),
            min((s for s in known if s >= rows), default=0),
        )
        if not below or not above:
            return None
        share = (rows - below) / (above - below) if above > below else 0.0
        return known[below] * (1 - share) + known[above] * share


def bytes_of(node: Node) -> int:
    """Returns the size in bytes of a value with static sizes, such as a weight."""
    value: torch.Tensor = node.meta["val"]
    return value.numel() * value.dtype.itemsize


def _at(value: Any, values: Mapping[Any, int]) -> Any:
    """Replaces symbolic sizes in fake values by numbers. Returns tensors on the meta device, which use no memory."""

    def size(one: int | torch.SymInt) -> int:
        return int(one.node.expr.xreplace(values)) if isinstance(one, torch.SymInt) else one

    def tensor(fake: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            [size(one) for one in fake.shape], [size(one) for one in fake.stride()], dtype=fake.dtype, device="meta"
        )

    return tree_map_only(torch.SymInt, size, tree_map_only(torch.Tensor, tensor, value))


def _work(op: Any, given: tuple[list[Any], dict[str, Any]]) -> Work:
    args, kwargs = given
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = op(*args, **kwargs)
    read = {id(one): one for one in tree_leaves(given) if isinstance(one, torch.Tensor)}.values()
    made = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    memory = {one.untyped_storage()._cdata for one in read}
    if all(one.untyped_storage()._cdata in memory for one in made):
        return Work(0, 0, 0)
    return Work(counter.get_total_flops(), sum(one.numel() * one.element_size() for one in (*read, *made)), 1)
