"""Times whole models, converted with the default rules, against what users would run instead.

    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers eager compile aoti
    python bench/models.py bench/results/h200_models.json --only bert-base vit-b-16 --peers max_autotune

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
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import artifact
import record
import torch
from cases import DTYPES
from clock import AGAIN, Call, in_turn, looped, noise, ratio, streamed
from peers import GRAPH, PEERS, Problem
from record import Row
from rich.console import Console
from rich.table import Table
from zoo import ENTRIES, Entry

from fuseconv.errors import FuseconvError
from fuseconv.parity import Reference
from fuseconv.targets import TARGETS, aoti
from fuseconv.tolerance import compare

KEY = ("model", "dtype", "shape", "layers")
PACKAGES = ("onnxruntime", "onnxruntime-gpu", "transformers")
LONGEST_REASON = 200
NOT_ASKED = "not asked for"


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
            self.judge(full, (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs))

    def judge(self, name: str, outputs: Sequence[torch.Tensor]) -> None:
        """Notes what does not compute what the original computes."""
        pairs = zip(outputs, self.reference.original, self.reference.truth, strict=True)
        wrong = [row.reason for row in (compare(*three) for three in pairs) if not row.ok]
        if wrong:
            self.off[name] = wrong[0]


def reason(error: Exception) -> str:
    """Returns the kind of an error and the first line that it says."""
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {said}"[:LONGEST_REASON]


def measure(entry: Entry, dtype: str, arguments: argparse.Namespace, scratch: Path, deadline: float) -> Row:
    """Returns the row of a model.

    Raises:
        FuseconvError: it does not convert, or its bundle fails parity.
        AssertionError: what is timed is not what parity was proved of.
    """
    module, inputs = entry.made(DTYPES[dtype], arguments.layers)
    device: str = arguments.device
    conversion = artifact.converted(module, inputs, arguments.targets, device, scratch)
    problem = Problem(
        module.to(device), tuple(one.to(device) for one in inputs), device, entry.kind, scratch, compiler(scratch)
    )
    reference = artifact.example(conversion.bundle)
    same = map(torch.equal, reference.case.inputs, problem.inputs)
    assert all(same), f"{entry.at}: parity was proved on other inputs"
    ours, theirs = Contestants(problem, reference), Contestants(problem, reference)
    ours.absent.update(conversion.skipped)
    for written in conversion.written:
        ours.add(written.target, artifact.builder(conversion.bundle, written.target))
    assert ours.calls, f"{entry.at}: no target runs: {ours.absent}"
    assert not ours.off, f"{entry.at}: {ours.off}"
    for name, build in PEERS.items():
        if name not in arguments.peers:
            theirs.absent.update(dict.fromkeys(theirs.names(name), NOT_ASKED))
        elif time.monotonic() > deadline:
            theirs.absent.update(dict.fromkeys(theirs.names(name), "out of time"))
        else:
            theirs.add(name, build)
    return {
        "model": entry.name,
        "dtype": dtype,
        "shape": list(entry.shape),
        "layers": arguments.layers,
        "fusions": len(conversion.plan.steps),
        "artifact": artifact.identity(conversion.bundle),
        **timed(ours, theirs, arguments.rounds),
    }


def timed(ours: Contestants, theirs: Contestants, rounds: int) -> Row:
    """Returns the figures of a row: all calls in turn, round by round."""
    calls = ours.calls | theirs.calls
    noisy = list(ours.calls)[-1]
    sampler = streamed if ours.problem.device == "cuda" else looped
    times = in_turn({name: sampler([call]) for name, call in {**calls, AGAIN: calls[noisy]}.items()}, rounds)
    milliseconds = {name: statistics.median(times[name]) / 1e3 for name in calls}
    fastest = min(ours.calls, key=milliseconds.__getitem__)
    return judged(
        {
            "targets": {name: milliseconds[name] for name in ours.calls},
            "targets_absent": ours.absent,
            "ours": fastest,
            "peers": {name: milliseconds[name] for name in theirs.calls},
            "ratios": {name: ratio(times, name, fastest) for name in theirs.calls},
            "peers_absent": theirs.absent,
            "peers_off": theirs.off,
            "noise": noise(times, noisy),
        }
    )


def judged(row: Row) -> Row:
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
    return judged({**new, **kept})


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
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no model but the first, and no peer, is begun after these"
    )
    return parser.parse_args()


def main() -> int:
    """Measures, prints, and writes after every row: a run that is stopped keeps what it has; 1 if a model failed."""
    arguments = parsed()
    deadline = time.monotonic() + arguments.seconds
    rows: list[Row] = []
    failed: dict[str, str] = {}
    machine = record.machine(arguments.device, PACKAGES)
    stream = torch.cuda.Stream() if arguments.device == "cuda" else None  # ONNX Runtime does not take the default one
    with torch.no_grad(), torch.cuda.stream(stream):
        for number, (entry, dtype) in enumerate(wanted(arguments)):
            name = f"{entry.at} {dtype}"
            if number and time.monotonic() > deadline:
                failed[name] = "not begun: out of time"
                continue
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    rows.append(measure(entry, dtype, arguments, Path(scratch), deadline))
                except (FuseconvError, AssertionError) as error:
                    failed[name] = reason(error)
                    print(f"{name}: {error}", file=sys.stderr, flush=True)
                    continue
            record.write(arguments.out, rows, machine, KEY, joined)
            print(f"{name}: {rows[-1]['ours']} {rows[-1]['ratio']}", file=sys.stderr, flush=True)
            torch.compiler.reset()
            gc.collect()
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
