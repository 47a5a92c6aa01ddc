"""The rows of bench/models.py: what follows from their figures, how two runs are joined, and the table of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from peers import GRAPH, PEERS
from record import Row
from rich.table import Table

KEY = ("model", "dtype", "shape", "layers")
NOT_ASKED = "not asked for"


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
    first = ("new sizes",) if any("first_ratio" in row for row in rows) else ()
    for name in ("ms", "graph ms", *shown, "best peer", "noise", *first):
        made.add_column(name.replace("_", "-"), justify="right")
    for row in rows:
        name = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        shape = size(row)
        own = [f"{ms:.3f}" if ms else "" for ms in (row["ours_ms"], row["ours_graph_ms"])]
        ratios = [f"{row['ratios'][peer]:.2f}x" if peer in row["ratios"] else "" for peer in shown]
        best = f"{row['ratio']:.2f}x" if row["ratio"] else ""
        new = [f"{row['first_ratio']:.2f}x" if row.get("first_ratio") else ""] if first else []
        made.add_row(name, row["dtype"], shape, row["ours"], *own, *ratios, best, f"{100 * row['noise']:.1f} %", *new)
    return made


def size(row: Row) -> str:
    """Returns the sizes of a row in one word: `32x128`, or `1..8x8..128` where they change."""
    return "x".join(f"{one[0]}..{one[1]}" if isinstance(one, list) else str(one) for one in row["shape"])


def nearest(rows: Sequence[Row]) -> Table:
    """Returns a table of our time, that of the nearest peer, and their ratio. The rows that lose come first."""
    made = Table("model", "dtype", "size", "ours", "ms", "nearest peer", "ms", "ratio", "noise", "new sizes", box=None)
    for row in sorted(rows, key=lambda row: row["ratio"] or 0):
        name = row["model"] + (f", {row['layers']} layers" if row["layers"] else "")
        peer, new = row["best_peer"], row.get("first_ratio")
        figures = (f"{row['targets'][row['ours']]:.3f}", peer or "", f"{row['peers'][peer]:.3f}" if peer else "")
        ratio, noise = f"{row['ratio']:.2f}x" if peer else "", f"{100 * row['noise']:.1f} %"
        made.add_row(name, row["dtype"], size(row), row["ours"], *figures, ratio, noise, f"{new:.2f}x" if new else "")
    return made


def means(rows: Sequence[Row]) -> Iterator[str]:
    """Yields a line each for the models at a fixed size and under changing ones: the geometric mean and who loses."""
    changing = [row for row in rows if _changes(row)]
    fixed = [row for row in rows if not _changes(row)]
    for name, some, key in (
        ("fixed sizes", fixed, "ratio"),
        ("changing sizes", changing, "ratio"),
        ("changing sizes, met for the first time", changing, "first_ratio"),
    ):
        found = [row for row in some if row.get(key)]
        if found:
            mean = statistics.geometric_mean(row[key] for row in found)
            lost = [row["model"] for row in found if row[key] * (1 + row["noise"]) < 1]
            below = f"{len(lost)} below 1 beyond noise: {', '.join(lost)}" if lost else "none below 1 beyond noise"
            yield f"{name}: {mean:.3f}x the nearest peer in geometric mean of {len(found)}; {below}"


def _changes(row: Row) -> bool:
    return any(isinstance(one, list) for one in row["shape"])
