"""Rows of models under changing sizes: one bundle, and what users would run instead, at random sizes of its ranges.

Every contestant of bench/contestants.py is built and loaded in one process. Ours are called first: what the process
has to load or to find out at a size, such as a plan of cuDNN, is theirs to pay, and the peers find it. `first` is the
mean wall clock of a call of a size that the contestant has not seen, in milliseconds, and `first_median` and
`first_worst` are the median and the longest of these calls; `targets` and `peers` are the mean of the same calls later,
in rounds. Bundles are loaded as by default, so with CUDA graphs where they pay.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import artifact
import torch
from clock import AGAIN, in_turn, noise, ratio
from contestants import OURS, PEERS, Server
from record import Row, reason
from replay import replayed
from rows import NOT_ASKED, summarized
from served import Served, cut
from traffic import Ranges, Size, Traffic, outside
from zoo_parts import Axis, Entry, Inputs

from fuseconv.runtime.model import load

SIZES = 20


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
    servers: dict[str, Server] = {}
    absent: dict[str, str] = {}
    for name, one in PEERS.items():
        if name not in arguments.peers:
            absent[name] = NOT_ASKED
            continue
        (scratch / one.folder).mkdir()
        try:
            one.build(served, scratch / one.folder)
            servers[name] = one.load(served, scratch / one.folder)()
        except Exception as error:  # noqa: BLE001 - that a tool fails is a result
            absent[name] = reason(error)
    largest = tuple(one.to(arguments.device) for one in served.inputs())

    def measure() -> Row:
        artifact.tuned(made.bundle, arguments)
        ours = {OURS + target: load(made.bundle, target) for target in made.targets}
        row = timed({**ours, **servers}, served, largest, arguments.rounds)
        row["peers_absent"] |= absent
        about = {"shape": shape(served.axes), "targets_absent": made.skipped, "peers_off": {}}
        return made.row() | about | summarized(row)

    return measure


def timed(calls: dict[str, Server], served: Served, largest: Inputs, rounds: int) -> Row:
    """Returns the figures of calls by name, ours first."""
    traffic = Traffic(sizes(served.ranges))
    inputs = {size: cut(largest, served.axes, size) for size in {*traffic.sizes, outside(served.ranges)}}

    def milliseconds(call: Server, some: Traffic) -> float:
        return replayed(call, some, inputs, served.device).busy * 1e3 / len(some.sizes)

    first: dict[str, tuple[float, ...]] = {}
    absent = {}
    for name, call in calls.items():
        if served.device == "cuda":
            torch.cuda.empty_cache()  # each pays for memory of its own
        try:
            milliseconds(call, Traffic((outside(served.ranges),) * 2))
            first[name] = tuple(one * 1e3 for one in replayed(call, traffic, inputs, served.device).seconds)
        except Exception as error:
            if name.startswith(OURS):
                raise
            absent[name] = reason(error)
    run = {name: calls[name] for name in first}
    again = next(iter(run))
    samplers = {name: partial(milliseconds, call, traffic) for name, call in {**run, AGAIN: run[again]}.items()}
    times = in_turn(samplers, rounds)
    ms = {name: statistics.median(times[name]) for name in run}
    targets = [name for name in run if name.startswith(OURS)]
    peers = [name for name in run if name not in targets]
    best = min(targets, key=ms.__getitem__)
    mean = {name: statistics.mean(values) for name, values in first.items()}
    first_peer = min((mean[name] for name in peers), default=None)
    return {
        "targets": {name.removeprefix(OURS): ms[name] for name in targets},
        "ours": best.removeprefix(OURS),
        "peers": {name: ms[name] for name in peers},
        "ratios": {name: ratio(times, name, best) for name in peers},
        "first": mean,
        "first_median": {name: statistics.median(values) for name, values in first.items()},
        "first_worst": {name: max(values) for name, values in first.items()},
        "first_ratio": first_peer / mean[best] if first_peer else None,
        "peers_absent": absent,
        "noise": noise(times, again),
    }
