"""Times whole models, converted with the default rules, against what users would run instead.

    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers eager compile aoti
    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers max_autotune --together
    python bench/models.py build/zoo.json --together --layers 2 --sizes fixed changing --resume --seconds 280

A row is a model, dtype and shape; with `--sizes changing` the shape is the ranges, and bench/changing.py says what is
timed. `targets` holds what each of the bundle's targets takes, in milliseconds a call, and with `+graph` replayed from
a CUDA graph; `ours_ms` and `ours_graph_ms` are the fastest of either kind, `ours` is the
fastest of all. `peers` holds the same for those who do without fuseconv; `ratios` the medians of each round's ratio of
a peer to `ours`; `ratio` the smallest, of `best_peer`; `noise` what the same call differs by from itself. Nothing is
left out in silence: `peers_absent` and `targets_absent` say why. A peer that is farther from float64 than the tolerance
table allows is timed all the same, and named in `peers_off`.

The bundle's parity is proved before, on the very inputs that are timed and on others. Rows of an existing file are
joined with those of the same artifact (its plan and op libraries, hashed), so that the peers can be measured in several
runs: a ratio is always of one run. All graphs are captured by one function, on static inputs that nobody copies.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import get_args

import artifact
import changing
import kernels
import record
import together
import torch
from cases import DTYPES
from clock import AGAIN, Call, in_turn, looped, noise, ratio, streamed
from peers import GRAPH, PEERS, TIMED, Problem, compiler
from record import Row, reason
from rich.console import Console
from rows import KEY, NOT_ASKED, joined, means, nearest, size, summarized, table
from together import Limits
from turns import Turns
from zoo import ENTRIES
from zoo_parts import Entry

from fuseconv.errors import FuseconvError
from fuseconv.numerics.tolerance import compare
from fuseconv.parity.reference import Reference
from fuseconv.pipeline.tune import Tune
from fuseconv.targets import TARGETS

PACKAGES = ("onnxruntime", "onnxruntime-gpu", "transformers")
OURS = "fuseconv "
OUT_OF_TIME = "out of time"


class Contestants:
    """Calls by name, why others are absent, and which compute something else."""

    def __init__(self, problem: Problem, reference: Reference) -> None:
        self.problem = problem
        self.reference = reference
        self.calls: dict[str, Call] = {}
        self.absent: dict[str, str] = {}
        self.off: dict[str, str] = {}

    def names(self, name: str) -> tuple[str, ...]:
        """Returns the name, and on CUDA the name of its replay from a graph."""
        return (name, name + GRAPH) if self.problem.device == "cuda" else (name,)

    def add(self, name: str, build: Callable[[Problem, bool], Call]) -> None:
        """Builds the calls of a name, and makes each once to hold it against the reference."""
        for full in self.names(name):
            try:
                call = build(self.problem, full != name)
                outputs = call()
            except Exception as error:  # noqa: BLE001 - that a tool fails is a result
                self.absent[full] = reason(error)
                continue
            self.calls[full] = call
            self.compare(full, (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs))

    def compare(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        """Notes what does not compute what the original computes."""
        pairs = zip(outputs, self.reference.original, self.reference.fp64, strict=True)
        wrong = [row.reason for row in (compare(*three) for three in pairs) if not row.ok]
        if wrong:
            self.off[name] = wrong[0]


def prepare(entry: Entry, dtype: str, arguments: argparse.Namespace, scratch: Path) -> Callable[[], Row]:
    """Converts a model and builds its peers; returns what times them, and returns the row.

    Raises:
        FuseconvError: it does not convert, or its bundle fails parity.
        AssertionError: what is timed is not what parity was proved of.
    """
    device: str = arguments.device
    made = artifact.converted(entry, dtype, arguments, scratch)
    module, inputs = entry.made(DTYPES[dtype], arguments.layers)
    problem = Problem(
        module.to(device), tuple(one.to(device) for one in inputs), device, entry.kind, scratch, compiler(scratch)
    )
    reference = artifact.example(made.bundle)
    same = map(torch.equal, reference.case.inputs, problem.inputs)
    assert all(same), f"{entry.at}: parity was proved on other inputs"
    ours, theirs = Contestants(problem, reference), Contestants(problem, reference)
    ours.absent.update(made.skipped)
    oppose(theirs, [name for name in PEERS if name not in TIMED], arguments)

    def measure() -> Row:
        artifact.tuned(made.bundle, arguments)
        for target in made.targets:
            ours.add(target, artifact.builder(made.bundle, target))
            if arguments.kernels and target in ours.calls:
                kernels.write(arguments.kernels, f"{entry.at} {dtype} {target}", ours.calls[target])
        assert ours.calls, f"{entry.at}: no target runs: {ours.absent}"
        assert not ours.off, f"{entry.at}: {ours.off}"
        oppose(theirs, TIMED, arguments)
        return made.row() | timed(ours, theirs, arguments.rounds)

    return measure


def oppose(theirs: Contestants, names: Sequence[str], arguments: argparse.Namespace) -> None:
    """Builds those peers that are asked for, and notes the others as absent."""
    for name in names:
        if name not in arguments.peers:
            theirs.absent.update(dict.fromkeys(theirs.names(name), NOT_ASKED))
        elif time.time() > arguments.until:
            theirs.absent.update(dict.fromkeys(theirs.names(name), OUT_OF_TIME))
        else:
            theirs.add(name, PEERS[name])


def timed(ours: Contestants, theirs: Contestants, rounds: int) -> Row:
    """Returns the figures of a row: all calls in turn, round by round."""
    # A target and a peer may have one name.
    calls = {OURS + name: call for name, call in ours.calls.items()} | theirs.calls
    noisy = OURS + list(ours.calls)[-1]
    sampler = streamed if ours.problem.device == "cuda" else looped
    times = in_turn({name: sampler([call]) for name, call in {**calls, AGAIN: calls[noisy]}.items()}, rounds)
    milliseconds = {name: statistics.median(times[name]) / 1e3 for name in calls}
    fastest = min(ours.calls, key=lambda name: milliseconds[OURS + name])
    return summarized(
        {
            "targets": {name: milliseconds[OURS + name] for name in ours.calls},
            "targets_absent": ours.absent,
            "ours": fastest,
            "peers": {name: milliseconds[name] for name in theirs.calls},
            "ratios": {name: ratio(times, name, OURS + fastest) for name in theirs.calls},
            "peers_absent": theirs.absent,
            "peers_off": theirs.off,
            "noise": noise(times, noisy),
        }
    )


PREPARE = {"fixed": prepare, "changing": changing.prepare}
"""What makes a row of a model at its size, and under changing ones."""


def wanted(arguments: argparse.Namespace) -> dict[str, tuple[Entry, str, str]]:
    """Returns a model, a dtype and `fixed` or `changing` for each row asked for, which the file does not have."""
    found = {}
    done = {record.known_by(row, KEY) for row in written(arguments.out)} if arguments.resume else set()
    for kind in arguments.sizes:
        for entry in ENTRIES:
            if arguments.only and entry.name not in arguments.only and entry.at not in arguments.only:
                continue
            shape = changing.shape(entry.axes) if kind == "changing" else list(entry.shape)
            for dtype in arguments.dtype or (entry.dtype,):
                values = entry.name, dtype, shape, arguments.layers
                key = record.known_by(dict(zip(KEY, values, strict=True)), KEY)
                if key not in done:
                    found.setdefault(key, (entry, dtype, kind))
    return found


def cores() -> int:
    """Returns on how many cores this process may run: with `taskset`, several runs share a machine of several GPUs."""
    return len(os.sched_getaffinity(0))


def written(path: Path) -> list[Row]:
    """Returns the rows of a file that need not exist."""
    rows: list[Row] = json.loads(path.read_text())["rows"] if path.exists() else []
    return rows


def parsed() -> argparse.Namespace:
    """Returns the command line's values."""
    known = sorted({*(entry.name for entry in ENTRIES), *(entry.at for entry in ENTRIES)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=known, metavar="MODEL", default=[], help=", ".join(known))
    parser.add_argument("--sizes", nargs="+", choices=PREPARE, default=["fixed"])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[], help="by default each model's own")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--layers", type=int, help="in place of all; in each stage of a model that has several")
    parser.add_argument("--tune", choices=get_args(Tune), default="none", help="of the matches, while others build")
    parser.add_argument("--tactics", type=float, default=15, metavar="SECONDS", help="to measure those of a bundle")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernels", type=Path, metavar="FILE", help="append which kernels our targets run on the GPU")
    parser.add_argument("--resume", action="store_true", help="leave out the rows that the file has")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="nothing but a first model is begun after")
    parser.add_argument(
        "--together", action="store_true", help="build the models side by side, in a process each; time them in turn"
    )
    parser.add_argument("--processes", type=int, default=cores(), help="of --together, at a time")
    parser.add_argument("--limit", type=float, default=240, help="seconds of one of --together to build, and to time")
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)  # the folder of those who are built together
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.until = arguments.until or time.time() + arguments.seconds
    return arguments


def in_turn_here(arguments: argparse.Namespace) -> dict[str, str]:
    """Measures what is asked for, one after the other, and returns why some have no row."""
    failed: dict[str, str] = {}
    turns = Turns(arguments.turns)
    stream = torch.cuda.Stream() if arguments.device == "cuda" else None  # ONNX Runtime does not take the default one
    with torch.no_grad(), torch.cuda.stream(stream):
        for number, (entry, dtype, kind) in enumerate(wanted(arguments).values()):
            name = f"{entry.at} {dtype} {kind}"
            if number and time.time() > arguments.until:
                failed[name] = f"not begun: {OUT_OF_TIME}"
                continue
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    with turns.in_company():
                        measure = PREPARE[kind](entry, dtype, arguments, Path(scratch))
                    with turns.alone():
                        known = dict(zip(KEY, (entry.name, dtype, list(entry.shape), arguments.layers), strict=True))
                        row = known | measure()
                        record.write(arguments.out, [row], record.machine(arguments.device, PACKAGES), KEY, joined)
                    print(f"{name}: {row['ours']} {row['ratio']}", file=sys.stderr, flush=True)
                except (FuseconvError, AssertionError) as error:
                    failed[name] = reason(error)
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
            torch.compiler.reset()
            gc.collect()
    return failed


def in_company(arguments: argparse.Namespace) -> dict[str, str]:
    """Measures each row in a process of its own; returns as `in_turn_here` does."""
    with tempfile.TemporaryDirectory() as folder:
        given = [word for word in sys.argv[1:] if word not in ("--together", "--resume")]
        given += ["--turns", folder, "--until", str(arguments.until)]
        commands = {
            f"{entry.at} {dtype} {kind}": [
                *(sys.executable, __file__, *given, "--only", entry.at, "--dtype", dtype, "--sizes", kind)
            ]
            for entry, dtype, kind in wanted(arguments).values()
        }
        limits = Limits(arguments.processes, arguments.limit, arguments.until)
        # Threads of torch wait for each other by spinning: more than there are cores, they slow every process. What
        # is timed on the CPU is timed with all of them.
        side_by_side = max(1, min(limits.processes, len(commands)))
        threads = max(1, cores() // side_by_side) if arguments.device == "cuda" else None
        return together.run(commands, Path(folder), limits, threads)


def main() -> int:
    """Measures, prints, and writes after every row: a run that is stopped keeps what it has; 1 if a model failed."""
    arguments = parsed()
    failed = (in_company if arguments.together else in_turn_here)(arguments)
    arguments.resume = False
    asked = wanted(arguments)
    rows = [row for row in written(arguments.out) if record.known_by(row, KEY) in asked]
    console = Console(width=200)
    console.print(table(rows))
    console.print(nearest(rows))
    for line in means(rows):
        print(line)
    for name, why in failed.items():
        print(f"{name}: {why}")
    for row in rows:
        for name, why in (row["targets_absent"] | row["peers_absent"]).items():
            if why != NOT_ASKED:
                print(f"{row['model']} {row['dtype']} {size(row)} {name} absent: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
