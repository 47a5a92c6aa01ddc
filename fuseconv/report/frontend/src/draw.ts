// A placed graph as SVG. Boxes are buttons; the arrow keys move between them.

import { h, s } from "./dom";
import { type Layout, type Placed, shortened, SIGN } from "./layout";
import type { Box, Visible } from "./visible";

export interface Look {
  /** The stage of the match that a box belongs to, or an empty text. */
  stage: (box: Box) => string;
  note: (box: Box) => string;
  selected: (box: Box) => boolean;
  current: (box: Box) => boolean;
  press: (box: Box) => void;
}

function path(points: { x: number; y: number }[]): string {
  const radius = 5;
  const parts: string[] = [];
  points.forEach((point, at) => {
    const [before, after] = [points[at - 1], points[at + 1]];
    if (!before) parts.push(`M${point.x} ${point.y}`);
    else if (!after) parts.push(`L${point.x} ${point.y}`);
    else {
      const one = toward(point, before, radius);
      const other = toward(point, after, radius);
      parts.push(`L${one.x} ${one.y}Q${point.x} ${point.y} ${other.x} ${other.y}`);
    }
  });
  return parts.join("");
}

function toward(from: { x: number; y: number }, to: { x: number; y: number }, most: number): { x: number; y: number } {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const share = Math.min(most, length / 2) / length;
  return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
}

function drawBox(box: Box, at: Placed, look: Look): SVGGElement {
  const stage = look.stage(box);
  const note = look.note(box);
  const press = () => look.press(box);
  const open = box.kind === "open";
  const classes = ["box", box.kind, stage ? `stage ${stage}` : "", look.selected(box) ? "selected" : ""];
  const middle = at.x + (at.width + (box.kind === "module" ? SIGN : 0)) / 2;
  const sign = box.kind === "module" || open ? s("text", { class: "sign", "aria-hidden": "true", x: at.x + 12, y: at.y + (open ? 23 : at.height / 2 + 4) }, open ? "−" : "+") : null;
  return s(
    "g",
    {
      class: classes.filter(Boolean).join(" "),
      "data-id": box.id,
      role: "button",
      tabindex: look.current(box) ? 0 : -1,
      "aria-description": stage ? `in a match of the stage ${stage}` : null,
      "aria-expanded": box.path === null ? null : String(open),
      "aria-pressed": box.path === null ? String(look.selected(box)) : null,
      onclick: press,
    },
    s("rect", { x: at.x, y: at.y, width: at.width, height: at.height, rx: box.kind === "input" || box.kind === "output" ? at.height / 2 : 6 }),
    stage && !open ? s("rect", { class: "stripe", x: at.x, y: at.y + 6, width: 3, height: at.height - 12 }) : null,
    sign,
    open
      ? s("text", { class: "title", x: at.x + 24, y: at.y + 23 }, shortened(box.title))
      : s("text", { class: "title", x: middle, y: at.y + (note ? 18 : 18.5), "text-anchor": "middle" }, `${shortened(box.title)} `),
    note && !open ? s("text", { class: "note", x: middle, y: at.y + 33, "text-anchor": "middle" }, shortened(note)) : null,
  );
}

function nearest(layout: Layout, from: string, key: string): string | null {
  const start = layout.boxes.get(from);
  if (!start) return null;
  const [dx, dy] = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[key] as [number, number];
  let best: string | null = null;
  let least = Infinity;
  for (const [id, box] of layout.boxes) {
    const x = box.x + box.width / 2 - start.x - start.width / 2;
    const y = box.y + Math.min(box.height, 42) / 2 - start.y - Math.min(start.height, 42) / 2;
    const along = x * dx + y * dy;
    const aside = Math.abs(x * dy) + Math.abs(y * dx);
    if (id !== from && along > 1 && along + 2 * aside < least) [best, least] = [id, along + 2 * aside];
  }
  return best;
}

export function draw(visible: Visible, layout: Layout, look: Look, label: string): SVGSVGElement {
  const edge = (points: { x: number; y: number }[]) => s("path", { class: "edge", d: path(points), "marker-end": "url(#arrow)" });
  const backs = visible.boxes.flatMap((box) => {
    const at = layout.boxes.get(box.id);
    return at && box.kind === "open" ? [s("rect", { class: "back", x: at.x, y: at.y, width: at.width, height: at.height, rx: 6 })] : [];
  });
  const boxes = visible.boxes.flatMap((box) => {
    const at = layout.boxes.get(box.id);
    return at ? [{ box, element: drawBox(box, at, look) }] : [];
  });
  const marker = s(
    "marker",
    { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
    s("path", { class: "head", d: "M0 0.5 7 4 0 7.5z" }),
  );
  const svg = s(
    "svg",
    { viewBox: `0 0 ${layout.width} ${layout.height}`, role: "group", "aria-label": label },
    s("defs", {}, marker),
    ...backs,
    ...layout.edges.map((one) => edge(one.points)),
    ...boxes.map(({ element }) => element),
  );
  svg.addEventListener("keydown", (event) => {
    const focused = (event.target as Element).closest<SVGGElement>("[data-id]");
    const id = focused?.getAttribute("data-id");
    if (!focused || !id) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      focused.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    } else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      const next = nearest(layout, id, event.key);
      if (next) focusBox(svg, next);
    }
  });
  return svg;
}

/** Moves the focus to a box, which becomes the one that the tab key reaches. */
export function focusBox(svg: SVGSVGElement, id: string, focus = true): void {
  const box = svg.querySelector<SVGGElement>(`[data-id="${id}"]`);
  if (!box) return;
  for (const other of svg.querySelectorAll('[data-id][tabindex="0"]')) other.setAttribute("tabindex", "-1");
  box.setAttribute("tabindex", "0");
  if (focus) box.focus();
}

export function legend(stages: string[]): HTMLElement {
  return h("ul", { class: "legend" }, ...stages.map((stage) => h("li", { class: `stage ${stage}` }, stage)));
}
