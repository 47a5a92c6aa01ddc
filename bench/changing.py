"""Rows of models under changing sizes: one bundle, and what users would run instead, at random sizes of its ranges.

`targets` and `peers` are the mean wall clock of the calls, in milliseconds, in a process in which every contestant of
bench/contestants.py is loaded and has had all sizes. `first` is the mean of the same calls in a process of the
contestant's own, and `first_median` and `first_worst` are their median and the longest: in one process, the next
contestant would find plans that cuDNN made for the first. Before, that process has called the contestant three times at
another size, and our `load` has warmed up as it does by default. Bundles are loaded as by default, so with CUDA graphs
where they pay.
"""

from __future__ import annotations

import argparse
import random
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import artifact
import torch
from apart import process
from clock import AGAIN, in_turn, noise, ratio
from contestants import OURS, PEERS, Contestant, Server, contestants
from record import Row, reason
from replay import replayed
from rows import NOT_ASKED, summarized
from served import Served, cut
from traffic import Ranges, Size, Traffic, outside
from zoo_parts import Axis, Entry, Inputs

SIZES = 20

Seconds = tuple[float, ...]


def sizes(ranges: Ranges, count: int = SIZES) -> tuple[Size, ...]:
    """Returns random sizes, the same every time; where there are fewer, all of them."""
    draw = random.Random(0)  # noqa: S311 - traffic, not a secret
    found: dict[Size, None] = {}
    for _ in range(100 * count):
        size = tuple(draw.choice(values) for values in ranges)
        if size != outside(ranges):
            found[size] = None
        if len(found) == count:
            break
    return tuple(found)


def shape(axes: Sequence[Axis]) -> list[list[int]]:
    """Returns the least and the greatest size of each axis: what stands for the shape in a row."""
    return [[axis.sizes[0], axis.sizes[-1]] for axis in axes]


def prepare(entry: Entry, dtype: str, arguments: argparse.Namespace, scratch: Path) -> Callable[[], Row]:
    """Converts a model and builds its peers; returns what times them, and returns the row.

    Raises:
        FuseconvError: it does not convert, or its bundle fails parity.
    """
    served = Served(entry.name, dtype, arguments.layers, arguments.device)
    made = artifact.converted(served.entry, dtype, arguments, scratch, changing=True)
    asked = [name for name in PEERS if name in arguments.peers]
    chosen = contestants(made.targets, asked)
    folders = {name: scratch if name.startswith(OURS) else scratch / one.folder for name, one in chosen.items()}
    servers: dict[str, Server] = {}
    pools: dict[str, ProcessPoolExecutor] = {}
    absent = {name: NOT_ASKED for name in PEERS if name not in asked}
    largest = tuple(one.to(arguments.device) for one in served.inputs())

    def add(name: str) -> None:
        servers[name] = loaded(served, chosen[name], folders[name], largest)
        pools[name] = begun_apart(served, chosen[name], folders[name])

    for name in asked:
        folders[name].mkdir()
        try:
            chosen[name].build(served, folders[name])
            add(name)
        except Exception as error:  # noqa: BLE001 - that a tool fails is a result
            absent[name] = reason(error)

    def measure() -> Row:
        with ExitStack() as stack:
            for pool in pools.values():
                stack.enter_context(pool)
            artifact.tuned(made.bundle, arguments)
            for name in chosen:
                if name.startswith(OURS):  # loaded now, with the tactics that were measured
                    add(name)
                    stack.enter_context(pools[name])
            first: dict[str, Seconds] = {}
            for name, pool in pools.items():
                try:
                    first[name] = pool.submit(first_calls, served).result()
                except Exception as error:
                    if name.startswith(OURS):
                        raise
                    absent[name] = reason(error)
            calls = {name: servers[name] for name in chosen if name in first}
            row = timed(calls, first, served, largest, arguments.rounds)
        row["peers_absent"] = absent
        about = {"shape": shape(served.axes), "targets_absent": made.skipped, "peers_off": {}}
        return made.row() | about | summarized(row)

    return measure


def begun_apart(served: Served, one: Contestant, folder: Path) -> ProcessPoolExecutor:
    """Returns a process that has loaded a contestant and made calls of the size that no traffic has."""
    pool = process()
    try:
        pool.submit(begin, served, one, folder).result()
    except BaseException:
        pool.shutdown()
        raise
    return pool


def loaded(served: Served, one: Contestant, folder: Path, largest: Inputs) -> Server:
    """Loads a contestant, and calls it twice with the size that no traffic has. torch.compile compiles then."""
    call = one.load(served, folder)()
    first = outside(served.ranges)
    replayed(call, Traffic((first,) * 2), inputs_of(served, largest, (first,)), served.device)
    return call


begun: list[tuple[Server, Inputs]] = []
"""What `begin` leaves for `first_calls` in the process of a contestant."""


def begin(served: Served, one: Contestant, folder: Path) -> None:
    """Loads a contestant in this process."""
    warnings.simplefilter("ignore")
    largest = tuple(one.to(served.device) for one in served.inputs())
    begun.append((loaded(served, one, folder, largest), largest))


def first_calls(served: Served) -> Seconds:
    """Returns the seconds of the first call of each size in this process, after one of the size that no traffic has."""
    call, largest = begun.pop()
    traffic, known = Traffic(sizes(served.ranges)), outside(served.ranges)
    inputs = inputs_of(served, largest, (*traffic.sizes, known))
    if served.device == "cuda":
        torch.cuda.synchronize()  # ONNX Runtime has a stream of its own
    replayed(call, Traffic((known,)), inputs, served.device)
    return replayed(call, traffic, inputs, served.device).seconds


def inputs_of(served: Served, largest: Inputs, some: Sequence[Size]) -> dict[Size, Inputs]:
    """Returns the inputs of each size."""
    return {size: cut(largest, served.axes, size) for size in some}


def timed(
    calls: Mapping[str, Server], first: Mapping[str, Seconds], served: Served, largest: Inputs, rounds: int
) -> Row:
    """Returns the figures of calls by name, ours first, with the seconds of their first calls."""
    traffic = Traffic(sizes(served.ranges))
    inputs = inputs_of(served, largest, traffic.sizes)

    def milliseconds(call: Server) -> float:
        return replayed(call, traffic, inputs, served.device).busy * 1e3 / len(traffic.sizes)

    for call in calls.values():
        milliseconds(call)
    again = next(iter(calls))
    samplers = {name: partial(milliseconds, call) for name, call in {**calls, AGAIN: calls[again]}.items()}
    times = in_turn(samplers, rounds)
    ms = {name: statistics.median(times[name]) for name in calls}
    targets = [name for name in calls if name.startswith(OURS)]
    peers = [name for name in calls if name not in targets]
    best = min(targets, key=ms.__getitem__)
    new = {name: [one * 1e3 for one in seconds] for name, seconds in first.items()}
    mean = {name: statistics.mean(values) for name, values in new.items()}
    first_peer = min((mean[name] for name in peers), default=None)
    return {
        "targets": {name.removeprefix(OURS): ms[name] for name in targets},
        "ours": best.removeprefix(OURS),
        "peers": {name: ms[name] for name in peers},
        "ratios": {name: ratio(times, name, best) for name in peers},
        "first": mean,
        "first_median": {name: statistics.median(values) for name, values in new.items()},
        "first_worst": {name: max(values) for name, values in new.items()},
        "first_ratio": first_peer / mean[best] if first_peer else None,
        "noise": noise(times, again),
    }
