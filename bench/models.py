"""Times whole models, converted with the default rules, against what users would run instead.

    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers eager compile aoti
    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers max_autotune --together

A row is a model, dtype and shape. `targets` holds what each of the bundle's targets takes, in milliseconds a call, and
with `+graph` replayed from a CUDA graph; `ours_ms` and `ours_graph_ms` are the fastest of either kind, `ours` is the
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import artifact
import kernels
import record
import torch
from cases import DTYPES
from clock import AGAIN, Call, in_turn, looped, noise, ratio, streamed
from peers import GRAPH, PEERS, TIMED, Problem
from record import Row
from rich.console import Console
from rich.table import Table
from turns import Turns
from zoo import ENTRIES, Entry

from fuseconv.errors import FuseconvError
from fuseconv.numerics.tolerance import compare
from fuseconv.parity.reference import Reference
from fuseconv.targets import TARGETS, aoti

KEY = ("model", "dtype", "shape", "layers")
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "transformers")
LONGEST_REASON = 200
NOT_ASKED = "not asked for"
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


def reason(error: Exception) -> str:
    """Returns the kind of an error and the first line that it says."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}"[:LONGEST_REASON]


def measure(entry: Entry, dtype: str, arguments: argparse.Namespace, scratch: Path, turns: Turns) -> Row:
    """Returns the row of a model: converted and built in company, then chosen by timing, and timed, alone.

    Raises:
        FuseconvError: it does not convert, or its bundle fails parity.
        AssertionError: what is timed is not what parity was proved of.
    """
    device: str = arguments.device
    with turns.in_company():
        made = artifact.converted(entry.at, dtype, arguments.layers, arguments.targets, device, scratch)
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
    with turns.alone():
        for target in made.targets:
            ours.add(target, artifact.builder(made.bundle, target))
            if arguments.kernels and target in ours.calls:
                kernels.write(arguments.kernels, f"{entry.at} {dtype} {target}", ours.calls[target])
        assert ours.calls, f"{entry.at}: no target runs: {ours.absent}"
        assert not ours.off, f"{entry.at}: {ours.off}"
        oppose(theirs, TIMED, arguments)
        row = {
            "model": entry.name,
            "dtype": dtype,
            "shape": list(entry.shape),
            "layers": arguments.layers,
            "fusions": made.fusions,
            **({"rejected": made.rejected} if made.rejected else {}),
            "artifact": artifact.identity(made.bundle),
            **timed(ours, theirs, arguments.rounds),
        }
        record.write(arguments.out, [row], record.machine(device, PACKAGES), KEY, joined)
    print(f"{entry.at} {dtype}: {row['ours']} {row['ratio']}", file=sys.stderr, flush=True)
    return row


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


def summarized(row: Row) -> Row:
    """Returns a row with the figures that follow from its others."""
    graphs = {kind: [ms for name, ms in row["targets"].items() if name.endswith(GRAPH) == kind] for kind in (0, 1)}
    best = min(row["ratios"], key=row["ratios"].__getitem__, default=None)
    return row | {
        "ours_ms": min(graphs[0], default=None),
        "ours_graph_ms": min(graphs[1], default=None),
        "best_peer": best,
        "ratio": row["ratios"].get(best),
    }


def joined(old: Row, new: Row) -> Row:
    """Returns a row measured again, with the peers that only an earlier run of the same artifact measured."""
    if old["artifact"] != new["artifact"]:
        return new
    kept = {name: {**old[name], **new[name]} for name in ("peers", "ratios", "peers_absent")}
    kept["peers_off"] = {**{k: v for k, v in old["peers_off"].items() if k not in new["peers"]}, **new["peers_off"]}
    kept["peers_absent"] = {
        name: old["peers_absent"].get(name, why) if why == NOT_ASKED else why
        for name, why in kept["peers_absent"].items()
        if name not in kept["peers"]
    }
    return summarized({**new, **kept})


def table(rows: Sequence[Row]) -> Table:
    """Returns the rows as a person reads them: our time, and how many times slower each peer is."""
    shown = [name for name in (*PEERS, *(peer + GRAPH for peer in PEERS)) if any(name in row["peers"] for row in rows)]
    made = Table("model", "dtype", "shape", "ours", box=None)
    for name in ("ms", "graph ms", *shown, "best peer", "noise"):
        made.add_column(name.replace("_", "-"), justify="right")
    for row in rows:
        name = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        shape = "x".join(map(str, row["shape"]))
        own = [f"{ms:.3f}" if ms else "" for ms in (row["ours_ms"], row["ours_graph_ms"])]
        ratios = [f"{row['ratios'][peer]:.2f}x" if peer in row["ratios"] else "" for peer in shown]
        best = f"{row['ratio']:.2f}x" if row["ratio"] else ""
        made.add_row(name, row["dtype"], shape, row["ours"], *own, *ratios, best, f"{100 * row['noise']:.1f} %")
    return made


def compiler(scratch: Path) -> str:
    """Returns the C++ compiler that the target aoti uses."""
    return aoti.compilers(os.environ, scratch).get("CXX", os.environ.get("CXX", "g++"))


def wanted(arguments: argparse.Namespace) -> Iterator[tuple[Entry, str]]:
    """Yields the models asked for, each with every dtype asked for."""
    for entry in ENTRIES:
        if not arguments.only or entry.name in arguments.only or entry.at in arguments.only:
            yield from ((entry, dtype) for dtype in arguments.dtype or (entry.dtype,))


def parsed() -> argparse.Namespace:
    """Returns the command line's values."""
    known = sorted({*(entry.name for entry in ENTRIES), *(entry.at for entry in ENTRIES)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=known, metavar="MODEL", default=[], help=", ".join(known))
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[], help="by default each model's own")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--layers", type=int, help="of transformers and perceptrons, in place of all that they have")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--kernels", type=Path, metavar="FILE", help="append which kernels our targets run on the GPU")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="nothing but a first model is begun after")
    parser.add_argument(
        "--together", action="store_true", help="build the models side by side, in a process each; time them in turn"
    )
    parser.add_argument("--turns", type=Path, help=argparse.SUPPRESS)  # the lock of those who are built together
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.until = arguments.until or time.time() + arguments.seconds
    return arguments


def in_turn_here(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, str]]:
    """Measures the models asked for, one after the other, and returns their rows, and why others have none."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    stream = torch.cuda.Stream() if arguments.device == "cuda" else None  # ONNX Runtime does not take the default one
    with torch.no_grad(), torch.cuda.stream(stream):
        for number, (entry, dtype) in enumerate(wanted(arguments)):
            name = f"{entry.at} {dtype}"
            if number and time.time() > arguments.until:
                failed[name] = f"not begun: {OUT_OF_TIME}"
                continue
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    rows.append(measure(entry, dtype, arguments, Path(scratch), Turns(arguments.turns)))
                except (FuseconvError, AssertionError) as error:
                    failed[name] = reason(error)
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
            torch.compiler.reset()
            gc.collect()
    return rows, failed


def together(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, str]]:
    """Measures each of the models in a process of its own; returns as `in_turn_here` does."""
    with tempfile.TemporaryDirectory() as folder:
        turns = ["--turns", str(Path(folder, "turns")), "--until", str(arguments.until)]
        given = [word for word in sys.argv[1:] if word != "--together"]
        asked = list(wanted(arguments))
        # Threads of torch wait for each other by spinning: more than there are cores, they slow every process. What
        # is timed on the CPU is timed with all of them.
        share = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // len(asked)))}
        environment = {**os.environ, **(share if arguments.device == "cuda" else {})}
        children = {
            (entry, dtype): subprocess.Popen(  # noqa: S603 - this script
                [sys.executable, __file__, *given, *turns, "--only", entry.at, "--dtype", dtype],
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            for entry, dtype in asked
        }
        statuses = {one: child.wait() for one, child in children.items()}
    failed = {f"{entry.at} {dtype}": "see above" for (entry, dtype), status in statuses.items() if status}
    measured = {json.dumps([entry.name, dtype, list(entry.shape), arguments.layers]) for entry, dtype in statuses}
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.exists() else []
    return [row for row in rows if json.dumps([row[name] for name in KEY]) in measured], failed


def main() -> int:
    """Measures, prints, and writes after every row: a run that is stopped keeps what it has; 1 if a model failed."""
    arguments = parsed()
    rows, failed = (together if arguments.together else in_turn_here)(arguments)
    Console(width=200).print(table(rows))
    for name, why in failed.items():
        print(f"{name}: {why}")
    for row in rows:
        for name, why in (row["targets_absent"] | row["peers_absent"]).items():
            if why != NOT_ASKED:
                print(f"{row['model']} {row['dtype']} {name} absent: {why}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
