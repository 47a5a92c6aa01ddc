"""Draws files of bench/models.py: for each model how many times slower than ours its peers are, the nearest one named.

    python bench/plot.py bench/results/h200_models.json bench/results/h200_models_more.json docs/h200_models.png

A dot left of 1 is a peer that is faster; a ring is a replay of a CUDA graph; the band is the noise. The files
are of one device and one torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from peers import GRAPH, PEERS

mpl.use("agg")
from matplotlib import pyplot as plt  # it takes the backend that is chosen by then
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

Row = dict[str, Any]

COLOURS = dict(zip(PEERS, mpl.color_sequences["tab10"], strict=False))
INCHES_A_ROW = 0.45


def draw(contents: dict[str, Any], path: Path) -> None:
    """Writes the picture.

    Args:
        contents: what bench/models.py wrote.
        path: a name that ends as a form of matplotlib's does.

    Raises:
        ValueError: no row has a peer.
    """
    rows: list[Row] = [row for row in contents["rows"] if row["ratios"]]
    if not rows:
        raise ValueError("no row has a peer: measure some with bench/models.py --peers")
    figure, axes = plt.subplots(figsize=(10, 1.9 + INCHES_A_ROW * len(rows)), layout="constrained")
    for height, row in enumerate(rows):
        _row(axes, row, height)
    axes.axvline(1, color="black", linewidth=1)
    _axis(axes, rows)
    figure.suptitle(f"{contents['device']}, torch {contents['versions']['torch']}", fontsize=10)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _row(axes: Axes, row: Row, height: float) -> None:
    noise = max(row["noise"], 1e-3)
    axes.fill_betweenx([height - 0.4, height + 0.4], 1 / (1 + noise), 1 + noise, color="0.9", linewidth=0)
    for name, ratio in row["ratios"].items():
        colour = COLOURS[name.removesuffix(GRAPH)]
        face = "none" if name.endswith(GRAPH) else colour
        axes.scatter(ratio, height, s=45, edgecolors=[colour], facecolors=face, linewidths=1.6, zorder=3)
    best = f"{row['ratio']:.2f}x {row['best_peer']}".replace("_", "-")
    axes.annotate(
        best, (1.01, height), xycoords=("axes fraction", "data"), va="center", fontsize=9, annotation_clip=False
    )


def _axis(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xscale("log")
    ratios = [ratio for row in rows for ratio in row["ratios"].values()]
    axes.set_xlim(min(0.9, *ratios) * 0.95, max(1.1, *ratios) * 1.05)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="x", color="0.85", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlabel("time of a peer / time of our fastest target")
    axes.set_title("nearest peer", loc="right", fontsize=9, x=1.01, ha="left")
    shown = [peer for peer in PEERS if any(name.removesuffix(GRAPH) == peer for row in rows for name in row["ratios"])]
    for peer in shown:
        axes.scatter([], [], s=45, color=COLOURS[peer], label=peer.replace("_", "-"))
    if any(name.endswith(GRAPH) for row in rows for name in row["ratios"]):
        axes.scatter([], [], s=45, edgecolors="black", facecolors="none", linewidths=1.6, label="ring: CUDA graph")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.02), ncols=4, fontsize=8, frameon=False)


def _label(row: Row) -> str:
    layers = f", {row['layers']} layers" if row["layers"] else ""
    return f"{row['model']}{layers} {'x'.join(map(str, row['shape']))} {row['dtype']}"


if __name__ == "__main__":
    files = [json.loads(Path(name).read_text()) for name in sys.argv[1:-1]]
    draw({**files[0], "rows": [row for file in files for row in file["rows"]]}, Path(sys.argv[-1]))
