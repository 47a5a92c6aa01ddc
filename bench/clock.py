"""The clock of the benchmarks: peers in turn, round by round; ops on CUDA from graphs, their operands not cached."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Call = Callable[[], Any]
Sampler = Callable[[], float]
"""Times one call, in microseconds."""

COLD_BYTES = 180 << 20
"""What a graph's calls read before one reads the same operands again: three times the L2 cache of an H100 or H200."""

COLD_SETS = 3
"""Sets of operands at the least, however large: of one alone a call finds a part in the cache, 1.5 % of its time."""

LEAST_SECONDS = 2e-3
"""What one round of one peer takes at least: a clock's resolution, and the start of a graph, vanish in it."""

WARM_UPS = 3
"""Calls before a capture: TorchScript's executor optimises on its second."""

AGAIN = "again"
"""The peer that is ours once more: what it differs by is the noise."""


def microseconds(peers: Mapping[str, Sequence[Call]], device: str, rounds: int) -> dict[str, list[float]]:
    """Returns the times of one call of each peer, one for each round.

    Args:
        peers: name to calls on different operands, which are made in turn.
        device: `cpu` or `cuda`.
        rounds: how many; one more, the first, is not counted.
    """
    return in_turn({name: (replayed if device == "cuda" else looped)(calls) for name, calls in peers.items()}, rounds)


def in_turn(samplers: Mapping[str, Sampler], rounds: int) -> dict[str, list[float]]:
    """Returns what each sampler gives in each round, every round in an order of its own; a first is not counted."""
    times: dict[str, list[float]] = {name: [] for name in samplers}
    order = list(samplers)
    for number in range(rounds + 1):
        random.Random(number).shuffle(order)  # noqa: S311 - an order, not a secret
        for name in order:
            sample = samplers[name]()
            if number:
                times[name].append(sample)
    return times


def ratio(times: Mapping[str, Sequence[float]], peer: str, to: str) -> float:
    """Returns the median over rounds of one peer's time over another's of the same round."""
    return statistics.median(one / other for one, other in zip(times[peer], times[to], strict=True))


def noise(times: Mapping[str, Sequence[float]], name: str) -> float:
    """Returns by how much the same calls, timed twice, differ: the median over rounds."""
    return statistics.median(abs(a / b - 1) for a, b in zip(times[AGAIN], times[name], strict=True))


def looped(calls: Sequence[Call]) -> Sampler:
    """Times calls by the wall."""
    for call in calls[:2]:
        call()
    start = time.perf_counter()
    calls[0]()
    repeats = max(1, int(LEAST_SECONDS / (time.perf_counter() - start)))

    def sample() -> float:
        start = time.perf_counter()
        for number in range(repeats):
            calls[number % len(calls)]()
        return (time.perf_counter() - start) * 1e6 / repeats

    return sample


def streamed(calls: Sequence[Call]) -> Sampler:
    """Times calls one after the other on the current CUDA stream: the host's time counts where it is the longer."""
    for call in calls[:2]:
        call()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def milliseconds(repeats: int) -> float:
        begin.record()
        for number in range(repeats):
            calls[number % len(calls)]()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    repeats = max(1, int(LEAST_SECONDS * 1e3 / max(milliseconds(1), 1e-3)))
    return lambda: milliseconds(repeats) * 1e3 / repeats


def captured(call: Call) -> Call:
    """Returns the replay of a CUDA graph of one call; what it returns is overwritten by the next replay.

    Raises:
        RuntimeError: the call does what a capture does not allow.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UPS):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay(_operands: Call = call) -> Any:  # the graph reads the operands' memory and does not keep it
        graph.replay()
        return result

    return replay


def replayed(calls: Sequence[Call]) -> Sampler:
    """Times the replay of a CUDA graph that makes every call at least once."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.stream(side):  # what is lazy, or chosen by timing, cannot happen in a capture
        for call in calls[:2]:
            call()
        begin.record()
        calls[0]()
        end.record()
    torch.cuda.synchronize()
    repeats = max(len(calls), min(64, int(LEAST_SECONDS * 1e3 / max(begin.elapsed_time(end), 1e-3))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(repeats):
            calls[number % len(calls)]()

    def sample() -> float:
        graph.replay()  # hides the launch of the next
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / repeats

    return sample
