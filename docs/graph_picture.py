"""Small directed graphs as SVG pictures: layers from top to bottom, long edges led around, several graphs in a row.

The layering is that of Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system structures"
(1981): the longest path gives a node its layer, an edge that skips a layer passes through an invisible node there, and
the order in a layer is by the mean place of the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

CHARACTER, LINE, ROW, GAP, MARGIN = 7.3, 16, 38, 22, 24
"""Of a character its width at 12 px, of a line its height, between layers, between nodes, around a graph: pixels."""

STYLES = {
    "input": ("#f1f5f9", "#94a3b8", "", 12),
    "parameter": ("#fef3c7", "#d97706", "", 12),
    "constant": ("#fef3c7", "#d97706", "4 3", 12),
    "op": ("#e0e7ff", "#6366f1", "", 5),
    "fused": ("#bbf7d0", "#15803d", "", 5),
    "output": ("#ffffff", "#0f172a", "", 12),
}
"""Fill, stroke, dashes and corner radius of each kind of node."""

FONT = "font-family='ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace' font-size='12'"


@dataclass
class Box:
    """A node: its kind, a key of `STYLES`, and its lines of text; or an edge's place in a layer, without any."""

    kind: str = ""
    text: Sequence[str] = ()
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        """What the text needs."""
        return max((len(line) for line in self.text), default=0) * CHARACTER + (20 if self.text else 6)

    @property
    def height(self) -> float:
        """What the lines need."""
        return len(self.text) * LINE + 10 if self.text else 0


@dataclass
class Graph:
    """Boxes by name, and edges between them, from what makes a value to what reads it."""

    title: str
    boxes: dict[str, Box] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)


def picture(graphs: Sequence[Graph]) -> str:
    """Returns the SVG of some graphs side by side, an arrow between each and the next."""
    parts, left, heights = [], 0.0, []
    placed = []
    for graph in graphs:
        width, height = _place(graph)
        placed.append((graph, left, width))
        heights.append(height)
        left += width + 40
    total, tall = left - 40, max(heights)
    for number, (graph, offset, width) in enumerate(placed):
        shift = (tall - heights[number]) / 2
        place = f"x='{offset + width / 2:.0f}' y='20' text-anchor='middle' fill='#64748b'"
        parts += [
            f"<text {place}>{escape(graph.title)}</text>",
            f"<g transform='translate({offset:.0f} {shift + 24:.0f})'>",
            *_drawn(graph),
            "</g>",
        ]
        if number:
            x, y = offset - 34, (tall + 24) / 2
            arrow = f"M{x:.0f} {y:.0f}h22m-7 -6l7 6l-7 6"
            parts.append(f"<path d='{arrow}' fill='none' stroke='#0f172a' stroke-width='2'/>")
    size = f"width='{total:.0f}' height='{tall + 24:.0f}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {FONT}>"
    sheet = f"<rect {size} rx='8' fill='#ffffff'/>"
    return "\n".join([head, sheet, *parts, "</svg>"]) + "\n"


def _place(graph: Graph) -> tuple[float, float]:
    """Gives every box its place; returns the width and height of the whole."""
    _layer(graph)
    chains = _lead(graph)
    layers: dict[int, list[str]] = {}
    for name, box in graph.boxes.items():
        layers.setdefault(box.layer, []).append(name)
    near: dict[str, list[str]] = {name: [] for name in graph.boxes}
    for before, after in chains:
        near[before].append(after)
        near[after].append(before)
    boxes = graph.boxes
    for number in range(12):  # down and up in turn; a dozen passes settle graphs of this size
        for layer in sorted(layers, reverse=bool(number % 2)):
            side = layer + (1 if number % 2 else -1)
            sides = {name: [boxes[one].x for one in near[name] if boxes[one].layer == side] for name in layers[layer]}
            wanted = {name: _mean(places, boxes[name].x) for name, places in sides.items()}
            if number < 8:
                layers[layer].sort(key=wanted.__getitem__)
            _spread([boxes[name] for name in layers[layer]], [wanted[name] for name in layers[layer]])
    shift = MARGIN - min(box.x - box.width / 2 for box in boxes.values())
    y = float(MARGIN)
    for layer in sorted(layers):
        tall = max(boxes[name].height for name in layers[layer])
        for name in layers[layer]:
            boxes[name].x, boxes[name].y = boxes[name].x + shift, y + tall / 2
        y += tall + ROW
    return max(box.x + box.width / 2 for box in boxes.values()) + MARGIN, y - ROW + MARGIN


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _layer(graph: Graph) -> None:
    """Layers by the longest path; what nothing comes before stands right above what reads it first."""
    after: dict[str, list[str]] = {name: [] for name in graph.boxes}
    before: dict[str, list[str]] = {name: [] for name in graph.boxes}
    for one, other in graph.edges:
        after[one].append(other)
        before[other].append(one)
    depth: dict[str, int] = {}

    def longest(name: str) -> int:
        if name not in depth:
            depth[name] = 1 + max((longest(one) for one in before[name]), default=-1)
        return depth[name]

    for name, box in graph.boxes.items():
        box.layer = longest(name)
    for name, box in graph.boxes.items():
        if not before[name] and after[name]:
            box.layer = min(graph.boxes[one].layer for one in after[name]) - 1


def _lead(graph: Graph) -> list[tuple[str, str]]:
    """Puts an invisible box in every layer that an edge skips; returns the edges between neighbouring layers."""
    steps = []
    for one, other in list(graph.edges):
        last = one
        for layer in range(graph.boxes[one].layer + 1, graph.boxes[other].layer):
            name = f"{one}>{other}>{layer}"
            graph.boxes.setdefault(name, Box(layer=layer))
            steps.append((last, name))
            last = name
        steps.append((last, other))
    return steps


def _spread(row: Sequence[Box], wanted: Sequence[float]) -> None:
    """Moves boxes to where they want to be, as near as their order and the gaps between them allow."""
    groups: list[tuple[list[Box], float]] = []
    for box, place in zip(row, wanted, strict=True):
        groups.append(([box], place))
        while len(groups) > 1 and _right(groups[-2]) + GAP > _left(groups[-1]):
            (first, at), (second, other) = groups[-2:]
            offset = _span(first) / 2 + GAP + _span(second) / 2
            both = (at * len(first) + (other - offset) * len(second)) / (len(first) + len(second))
            middle = both + (_span(second) + GAP) / 2
            groups[-2:] = [(first + second, middle)]
    for members, middle in groups:
        x = middle - _span(members) / 2
        for box in members:
            box.x = x + box.width / 2
            x += box.width + GAP


def _span(boxes: Iterable[Box]) -> float:
    widths = [box.width for box in boxes]
    return sum(widths) + GAP * (len(widths) - 1)


def _left(group: tuple[list[Box], float]) -> float:
    return group[1] - _span(group[0]) / 2


def _right(group: tuple[list[Box], float]) -> float:
    return group[1] + _span(group[0]) / 2


def _drawn(graph: Graph) -> list[str]:
    edges = [_edge(graph.boxes, *edge) for edge in graph.edges]
    return edges + [_box(box) for box in graph.boxes.values() if box.text]


def _edge(boxes: Mapping[str, Box], one: str, other: str) -> str:
    first, last = boxes[one], boxes[other]
    between = [boxes[f"{one}>{other}>{layer}"] for layer in range(first.layer + 1, last.layer)]
    start, end = (first.x, first.y + first.height / 2), (last.x, last.y - last.height / 2)
    points = [start, *((box.x, box.y) for box in between), end]
    path = f"M{points[0][0]:.0f} {points[0][1]:.0f}"
    for (x, y), (end_x, end_y) in pairwise(points):
        middle = (y + end_y) / 2
        path += f"C{x:.0f} {middle:.0f} {end_x:.0f} {middle:.0f} {end_x:.0f} {end_y:.0f}"
    tip = f"M{last.x - 4:.0f} {points[-1][1] - 6:.0f}l4 6l4 -6"
    return f"<path d='{path}{tip}' fill='none' stroke='#64748b' stroke-width='1.3'/>"


def _box(box: Box) -> str:
    fill, stroke, dashes, radius = STYLES[box.kind]
    left, top = box.x - box.width / 2, box.y - box.height / 2
    dashed = f" stroke-dasharray='{dashes}'" if dashes else ""
    size = f"x='{left:.0f}' y='{top:.0f}' width='{box.width:.0f}' height='{box.height:.0f}' rx='{radius}'"
    texts = [f"<rect {size} fill='{fill}' stroke='{stroke}'{dashed}/>"]
    for number, line in enumerate(box.text):
        weight, colour = (" font-weight='bold'", "#0f172a") if number == 0 else ("", "#475569")
        y = top + 17 + LINE * number
        place = f"x='{box.x:.0f}' y='{y:.0f}' text-anchor='middle'"
        texts.append(f"<text {place} fill='{colour}'{weight}>{escape(line)}</text>")
    return "".join(texts)
