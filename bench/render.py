"""Writes the tables of every page of docs that has a marker from bench/results: each number is one of a run.

    python bench/render.py

A table stands between `<!-- table: FILE ... KEY=VALUE,... ... -->` and `<!-- end -->`: the rows of bench/results/FILE
whose KEY is one of the VALUEs, a shape written as 128x3072x768. Several files of one device are one table: of
two rows of the same case, the row of the later file is shown. `mean=KEY,...` gives geometric means in
place of the rows, a line for each value of the keys. `figure=KEY` says which figure of each contestant a table of
tokens shows. Rows of whole models, bench/counters.py and bench/serving.py have columns of their own. A peer that no row
was compared with has no column.
"""

from __future__ import annotations

import json
import math
import os
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
RESULTS = ROOT / "bench" / "results"
MARK = "<!-- table:"
MARKED = re.compile(rf"({MARK} (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
CASE = ("model", "dtype", "shape", "layers", "x", "weight", "stride", "dilation", "groups", "act", "residual")
"""What two rows of one case have in common."""
PEERS = ("eager", "compile", "max_autotune")
MODEL_PEERS = ("eager", "compile", "aoti", "max_autotune", "onnxruntime")
OURS = "fuseconv "
GRAPH = "+graph"
WAYS = tuple(way + graph for way in ("", "_channels_last", "_optimized") for graph in ("", GRAPH))
"""How a peer may run: its fastest way is its figure."""

TAIL = (("p50_ms", 2), ("p99_ms", 1))
"""Latencies of new and of known sizes, and how many decimals are shown."""

Row = dict[str, Any]


def pages() -> list[Path]:
    """Returns the pages of docs that have a marker."""
    return [page for page in sorted(DOCS.rglob("*.md")) if MARK in page.read_text()]


def rendered(text: str, folder: Path) -> str:
    """Returns a page of `folder` with every marked table made anew.

    Raises:
        ValueError: a marker is wrong, no row is what it asks for, or its files are not of one device and one torch.
    """
    return MARKED.sub(lambda found: found[1] + "\n".join(table(found[2], folder)) + "\n" + found[3], text)


def table(marker: str, folder: Path) -> Iterator[str]:
    """Yields the lines of one table; `marker` is what stands after `table:`, and `folder` has the page."""
    terms = marker.split()
    files = [term for term in terms if "=" not in term]
    wanted = dict(term.split("=", 1) for term in terms if "=" in term)
    means = [key for key in wanted.pop("mean", "").split(",") if key]
    figure = wanted.pop("figure", "")
    machine, joined = read(files)
    rows = [row for row in joined if all(word(row, key) in wanted[key].split(",") for key in wanted)]
    if not rows:
        raise ValueError(f"no row of {', '.join(files)} is {marker}")
    links = [f"[{file}]({os.path.relpath(RESULTS / file, folder)})" for file in files]
    yield f"{machine}; {', '.join(links)}."
    yield ""
    if "greedy_us" in rows[0]:
        yield from searched_lines(rows)
    elif "pattern" in rows[0]:
        yield from serving_lines(rows)
    elif "new_p50_ms" in rows[0]:
        yield from new_size_lines(rows)
    elif "of_bare" in rows[0]:
        yield from convolution_lines(rows)
    elif "bundle" in rows[0]:
        yield from weights_lines(rows)
    elif figure:
        yield from token_lines(rows, figure)
    elif "server" in rows[0]:
        yield from load_lines(rows)
    elif "model" in rows[0]:
        yield from model_lines(rows)
    elif "mask" in rows[0]:
        yield from attention_lines(rows)
    elif "issue_percent" in rows[0]:
        yield from counter_lines(rows)
    else:
        yield from mean_lines(rows, means) if means else row_lines(rows)


def read(files: Sequence[str]) -> tuple[str, list[Row]]:
    """Returns the machine of some result files in words, and their rows: the last row of each case.

    Raises:
        ValueError: no file is named, or the files are not of one device and one torch.
    """
    runs = [json.loads((RESULTS / file).read_text()) for file in files]
    machines = {f"{run['device']}, torch {run['versions']['torch']}" for run in runs}
    if len(machines) != 1:
        raise ValueError(f"one table is of one device and one torch, not of {sorted(machines)}: {' '.join(files)}")
    if len(runs) == 1:
        return machines.pop(), runs[0]["rows"]
    cases = {tuple(word(row, key) for key in CASE): row for run in runs for row in run["rows"]}
    return machines.pop(), list(cases.values())


def searched_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line for each graph and size: the time as it is written, of the chosen form, and of the fastest."""
    yield "| graph | dtype | width | size | as written, us | chosen, us | fastest, us | chosen form |"
    yield "|---|---|--:|--:|--:|--:|--:|---|"
    for row in rows:
        cells = [row["graph"], row["dtype"], row["width"], row["size"]]
        cells += [f"{row[key]:.1f}" for key in ("greedy_us", "chosen_us", "fastest_us")]
        yield f"| {' | '.join(map(str, cells))} | {row['chosen']} |"
    right = sum(not row["chosen_is_slower"] for row in rows)
    slower = sum(row["greedy_is_slower"] for row in rows)
    yield ""
    fast = f"The chosen form is the fastest, beyond the noise, at {right} of {len(rows)} sizes"
    yield f"{fast}. As written, {slower} are slower than that."


def model_lines(unordered: Sequence[Row]) -> Iterator[str]:
    """Yields a line for each model, sorted by name: our time, and how many times as long each peer takes.

    Several rows are followed by a summary.

    The time of a peer is that of its fastest way, such as with a CUDA graph.

    A row of changing sizes also has our time at a size that is called for the first time.
    """
    rows = sorted(unordered, key=lambda row: (row["model"], row["dtype"], row["shape"]))
    nearest = {
        peer: [
            min((row["ratios"][peer + way] for way in WAYS if peer + way in row["ratios"]), default=0) for row in rows
        ]
        for peer in MODEL_PEERS
    }
    peers = [peer for peer in MODEL_PEERS if any(nearest[peer])]
    changing = ["a new size, ms"] if any("first" in row for row in rows) else []
    yield f"| model | dtype | shape | ours | ms | {' | '.join([*changing, *map(title, peers)])} | nearest |"
    yield "|---|---|---|---|--:|" + "--:|" * (len(changing) + len(peers)) + "---|"
    for at, row in enumerate(rows):
        shape = word(row, "shape").replace("x", ", ")
        milliseconds = f"{row['targets'][row['ours']]:.3f}"
        milliseconds += f" | {row['first'][OURS + row['ours']]:.2f}" if changing else ""
        figures = [f"{nearest[peer][at]:.2f}x" if nearest[peer][at] else "" for peer in peers]
        cells = [model(row), row["dtype"], shape, row["ours"], milliseconds, *figures, title(row["best_peer"] or "")]
        yield f"| {' | '.join(cells)} |"
    compared = [row for row in rows if row["best_peer"]]
    if len(compared) <= 1:
        return
    ratios = [row["ratio"] for row in compared]
    middle = mean(compared, lambda row: row["ratio"])
    slower = sum(row["ratio"] < 1 - row["noise"] for row in compared)
    yield ""
    span = f"The nearest peer takes {min(ratios):.2f} to {max(ratios):.2f} times as long as the bundle"
    yield f"{span}; the geometric mean is {middle:.2f}."
    yield f"The bundle is slower, beyond the noise, in {slower} of {len(compared)} rows."
    if alone := len(rows) - len(compared):
        yield f"{alone} rows have no peer: none of them exports, or compiles, the model for these sizes."


def model(row: Row) -> str:
    """Returns the model of a row in words, with its number of layers if not all were measured."""
    return f"{row['model']}, {row['layers']} layers" if row.get("layers") else row["model"]


def attention_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line per call of attention: our time, and each other kernel's ratio to it, the copy's among them."""
    others = list(dict.fromkeys(peer for row in rows for peer in row["us"] if peer != "ours"))
    yield f"| batch, heads, tokens, width | mask | dtype | ours, us | {' | '.join(others)} |"
    yield "|---|---|---|--:|" + "--:|" * len(others)
    for row in rows:
        ours = row["us"]["ours"]
        figures = [f"{row['us'][peer] / ours:.2f}x" if peer in row["us"] else "" for peer in others]
        shape = word(row, "shape").replace("x", ", ")
        yield f"| {' | '.join([shape, row['mask'], row['dtype'], f'{ours:.2f}', *figures])} |"


def weights_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line per bundle, with its size and the memory of its conversion, and a line per target, as it loads."""
    yield "| model | bundle | target | bundle MB | conversion MB | load ms | private MB | second process adds MB |"
    yield "|---|---|---|" + "--:|" * 5
    keys = ("bundle_mb", "peak_anon_mb", "load_ms", "anon_mb", "second_process_mb")
    for row in rows:
        names = [row[key] for key in ("model", "bundle", "target")]
        yield f"| {' | '.join([*names, *(str(row.get(key, '')) for key in keys)])} |"


def token_lines(rows: Sequence[Row], figure: str) -> Iterator[str]:
    """Yields a line per model and batch, with a figure of each contestant."""
    contestants = list(dict.fromkeys(row["contestant"] for row in rows))
    yield f"| model | batch | {' | '.join(contestants)} |"
    yield "|---|--:|" + "--:|" * len(contestants)
    groups: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["batch"]), {})[row["contestant"]] = row
    for (model, batch), group in groups.items():
        figures = [f"{group[one][figure]:,}" if one in group else "" for one in contestants]
        yield f"| {' | '.join([model, str(batch), *figures])} |"


def load_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line per server under load: what was lost, wrong or sent again, and the latencies."""
    yield "| server | requests | requests/s | replicas killed | lost | wrong | sent again | p50 ms | p99 ms | waiting |"
    yield "|---|" + "--:|" * 9
    for row in rows:
        keys = ("requests", "requests_per_s", "killed", "lost", "wrong", "retried", "p50_ms", "p99_ms")
        waiting = " to ".join(f"{one:.1f}" for one in row.get("waiting", []))
        yield f"| {' | '.join([row['server'], *(str(row.get(key, '')) for key in keys), waiting])} |"


def serving_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line per contestant: latencies, throughput, latencies relative to warm ones, and memory.

    The contestants that did not run follow, with the reasons.
    """
    pairs = any("new_of_known" in row for row in rows)
    ratios = ["p50 / warm", "p99 / warm", *["new / known"] * pairs]
    heads = ["p50 ms", "p99 ms", "worst ms", "calls/s", *ratios, "torch MiB", "device MiB"]
    yield f"| model | dtype | pattern | served by | {' | '.join(heads)} |"
    yield "|---|---|---|---|" + "--:|" * len(heads)
    for row in rows:
        if "absent" not in row:
            names = [row[key] for key in ("dtype", "pattern", "contestant")]
            yield f"| {' | '.join([model(row), *names, *serving_figures(row, pairs)])} |"
    if absent := list(dict.fromkeys(f"{row['contestant']} ({row['absent']})" for row in rows if "absent" in row)):
        yield ""
        yield f"Not measured: {', '.join(absent)}."


def serving_figures(row: Row, pairs: bool) -> list[str]:
    """Returns the cells of a contestant that ran, with or without the ratio of new to known sizes."""
    milliseconds = [f"{row[key] / 1e3:.3f}" for key in ("p50_us", "p99_us", "worst_us")]
    keys = ("p50_of_warm", "p99_of_warm", *["new_of_known"] * pairs)
    ratios = [f"{row[key]:.2f}" if key in row else "" for key in keys]
    memory = [str(row[key] or "") for key in ("reserved_mb", "device_mb")]
    return [*milliseconds, f"{row['calls_per_s']:.0f}", *ratios, *memory]


def new_size_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line per target of bench/new_sizes.py, warmed up or not: calls at new sizes, and at known ones."""
    yield "| target | warmed s | new size: median ms | 99 % ms | known size: median ms | 99 % ms | reserved MiB |"
    yield "|---|" + "--:|" * 6
    for row in rows:
        figures = [f"{row[f'{size}_{key}']:.{digits}f}" for size in ("new", "known") for key, digits in TAIL]
        warmed, reserved = f"{row['warm_seconds']:g}", str(row["reserved_mib"])
        yield f"| {' | '.join([row['target'], warmed, *figures, reserved])} |"


def convolution_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields one line per convolution: its time, the ratio to cuDNN's bare convolution, and the ratios of the peers."""
    yield "| model | x | weight | stride | groups | act | residual | µs | of bare | eager | compile |"
    yield "|---|---|---|--:|--:|---|---|--:|--:|--:|--:|"
    for row in rows:
        shapes = [word(row, key).replace("x", ", ") for key in ("x", "weight")]
        numbers = [word(row, key) for key in ("stride", "groups", "act")]
        figures = [f"{row['us']['ours']:.1f}", f"{row['of_bare']:.2f}"]
        peers = [f"{row['ratios'][peer]:.2f}x" for peer in ("eager", "compile")]
        added = "yes" if row["residual"] else ""
        yield f"| {' | '.join([row['model'], *shapes, *numbers, added, *figures, *peers])} |"


def counter_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line a kernel: its time, what of the machine is at work, and what its warps wait for most."""
    yield "| op | act | dtype | shape | by | µs | DRAM | issue slots | instructions | busiest pipe | waits for |"
    yield "|---|---|---|---|---|--:|--:|--:|--:|---|---|"
    for row in rows:
        names = [word(row, key) for key in ("op", "act", "dtype")]
        shape = word(row, "shape").replace("x", ", ")
        figures = [f"{row['us']:.1f}", f"{row['dram_percent']:.0f} %", f"{row['issue_percent']:.0f} %"]
        pipe, at_work = row["pipe"].split()
        waits = row["stall"].split()[0].replace("_", " ")
        made = [f"{row['instructions']:.1f}", f"{pipe} {float(at_work):.0f} %", waits]
        yield f"| {' | '.join([*names, shape, row['by'], *figures, *made])} |"


def row_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line a row: our time, what part of the limit it reaches, and how many times slower the peers are."""
    peers = [peer for peer in PEERS if any(row[f"{peer}_us"] for row in rows)]
    yield "| op | act | dtype | shape | µs | of the limit | " + " | ".join(map(title, peers)) + " |"
    yield "|" + "---|" * 4 + "--:|" * (2 + len(peers))
    for row in rows:
        names = [word(row, key) for key in ("op", "act", "dtype")]
        shape = word(row, "shape").replace("x", ", ")
        figures = [f"{row['us']:.2f}", f"{100 * ratio(row, 'limit'):.0f} %", *(times(row, peer) for peer in peers)]
        yield f"| {' | '.join([*names, shape, *figures])} |"


def mean_lines(rows: Sequence[Row], keys: Sequence[str]) -> Iterator[str]:
    """Yields a line for each value of `keys`: geometric means, of a peer's ratios where all rows have one."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(word(row, key) for key in keys), []).append(row)

    def complete(group: Sequence[Row], peer: str) -> bool:
        return all(row[f"{peer}_us"] for row in group)

    peers = [peer for peer in PEERS if any(complete(group, peer) for group in groups.values())]
    yield f"| {' | '.join(keys)} | rows | ours / limit | " + " | ".join(map(title, peers)) + " |"
    yield "|" + "---|" * len(keys) + "--:|" * (2 + len(peers))
    for names, group in groups.items():
        limit = mean(group, lambda row: 1 / ratio(row, "limit"))
        means = [
            f"{mean(group, lambda row, peer=peer: ratio(row, peer)):.2f}x" if complete(group, peer) else ""
            for peer in peers
        ]
        yield f"| {' | '.join([*names, str(len(group)), f'{limit:.3f}', *means])} |"


def mean(rows: Sequence[Row], figure: Callable[[Row], float]) -> float:
    """Returns a geometric mean."""
    return math.exp(statistics.mean(math.log(figure(row)) for row in rows))


def ratio(row: Row, peer: str) -> float:
    """Returns how many times our time a peer's is: the median over rounds where the run kept it."""
    figure: float = row.get("ratios", {}).get(peer) or row[f"{peer}_us"] / row["us"]
    return figure


def times(row: Row, peer: str) -> str:
    """Returns how many times slower a peer is; nothing where it was not timed."""
    return f"{ratio(row, peer):.2f}x" if row[f"{peer}_us"] else ""


def title(peer: str) -> str:
    """Returns a peer as a column is called."""
    return peer.replace("_", "-")


def word(row: Row, key: str) -> str:
    """Returns a value of a row as a marker writes it."""
    value = row.get(key, "")
    if isinstance(value, list):
        return "x".join(f"{one[0]} to {one[1]}" if isinstance(one, list) else str(one) for one in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for page in pages():
        page.write_text(rendered(page.read_text(), page.parent))
