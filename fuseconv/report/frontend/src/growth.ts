// The error through the layers: at each border of a module or match, relative to the size of the value, on a log scale.

import { scaleLinear, scaleLog } from "d3-scale";
import { line } from "d3-shape";
import type { Bundle, Growth, LayerError } from "./data";
import { code, h, prose, s, section, table } from "./dom";
import { exponent, titleOf } from "./format";
import type { GraphView } from "./graph";

const WIDTH = 960;
const HEIGHT = 320;
const MARGIN = { top: 16, right: 16, bottom: 58, left: 62 };

interface Point {
  at: number;
  border: LayerError;
  original: number | null;
  fused: number | null;
}

/** An error relative to the root mean square of the value; null where it is not defined or is zero, as logs need. */
function relative(error: number | null, border: LayerError): number | null {
  return error !== null && error > 0 && border.rms_fp64 > 0 ? error / border.rms_fp64 : null;
}

function points(growth: Growth): Point[] {
  return growth.borders.map((border, at) => ({ at, border, original: relative(border.original, border), fused: relative(border.fused, border) }));
}

/** The first two parts of a path that is not a number: `encoder.layer.0` counts as one layer. */
function group(layer: string): string {
  const parts = layer.split(".");
  const number = parts.findIndex((part) => /^\d+$/.test(part));
  return parts.slice(0, number < 0 ? 1 : number + 1).join(".");
}

function bands(found: Point[]): { name: string; from: number; to: number }[] {
  const result: { name: string; from: number; to: number }[] = [];
  for (const { at, border } of found) {
    const name = group(border.layer) || "model";
    const last = result[result.length - 1];
    if (last?.name === name) last.to = at;
    else result.push({ name, from: at, to: at });
  }
  return result;
}

function chart(bundle: Bundle, growth: Growth, title: string, view: GraphView): HTMLElement {
  const found = points(growth);
  const values = found.flatMap((point) => [point.original, point.fused]).filter((value): value is number => value !== null);
  if (values.length === 0) return h("p", { class: "absent" }, "Every value is exactly that of float64.");
  const x = scaleLinear([0, Math.max(found.length - 1, 1)], [MARGIN.left, WIDTH - MARGIN.right]);
  const y = scaleLog([Math.min(...values) / 1.5, Math.max(...values) * 1.5], [HEIGHT - MARGIN.bottom, MARGIN.top]);
  const curve = (pick: (point: Point) => number | null) =>
    line<Point>()
      .defined((point) => pick(point) !== null)
      .x((point) => x(point.at))
      .y((point) => y(pick(point) ?? 1))(found);
  const [low, high] = y.domain().map(Math.log10) as [number, number];
  const decades = Array.from({ length: Math.floor(high) - Math.floor(low) + 1 }, (_, at) => 10 ** (Math.floor(low) + at));
  const inside = (factors: number[]) => decades.flatMap((one) => factors.map((factor) => factor * one)).filter((one) => one >= 10 ** low && one <= 10 ** high);
  const ticks = [[1], [1, 2, 5], [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]].map(inside).find((found) => found.length > 1) ?? y.domain();
  const step = (x(1) - x(0)) / 2;
  const stripes = bands(found);
  const widest = Math.max(...stripes.map((band) => band.name.length)) * 6.6;
  let free = 0;
  const labels = stripes.map((band, at) => {
    const left = Math.max(x(band.from) - step, MARGIN.left);
    const right = Math.min(x(band.to) + step, WIDTH - MARGIN.right);
    const shown = left >= free && right - left > 8;
    if (shown) free = left + Math.min(widest, band.name.length * 6.6) + 8;
    return s(
      "g",
      {},
      at % 2 === 0 ? s("rect", { class: "band", x: left, y: MARGIN.top, width: right - left, height: HEIGHT - MARGIN.top - MARGIN.bottom }) : null,
      shown ? s("text", { class: "axis", x: left + 2, y: HEIGHT - MARGIN.bottom + 18 }, band.name) : null,
    );
  });
  const readout = h("p", { class: "readout", role: "status" }, "Point at the chart, or press a row of the table below.");
  const cursor = s("line", { class: "cursor", y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom, visibility: "hidden" });
  const tell = (point: Point) => {
    cursor.setAttribute("x1", String(x(point.at)));
    cursor.setAttribute("x2", String(x(point.at)));
    cursor.setAttribute("visibility", "visible");
    const where = [point.border.layer, point.border.rule ? `rule ${point.border.rule}` : ""].filter(Boolean).join(", ");
    readout.textContent = `${point.border.node}${where ? ` (${where})` : ""}: fused ${exponent(point.border.fused)}, original ${exponent(point.border.original)}, value ${exponent(point.border.rms_fp64)}`;
  };
  const svg = s(
    "svg",
    { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Relative error through the layers of ${title}; the table below has the figures` },
    ...labels,
    ...ticks.map((tick) =>
      s("g", {}, s("line", { class: "grid", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(tick), y2: y(tick) }), s("text", { class: "axis", x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, exponent(tick))),
    ),
    s("text", { class: "axis", x: MARGIN.left, y: HEIGHT - 10 }, "rmse against float64, divided by the root mean square of the value; in execution order"),
    s("path", { class: "line original", d: curve((point) => point.original) ?? "" }),
    s("path", { class: "line fused", d: curve((point) => point.fused) ?? "" }),
    ...found.filter((point) => point.border.rule !== null && point.fused !== null).map((point) => s("circle", { class: "dot", cx: x(point.at), cy: y(point.fused ?? 1), r: 2.6 })),
    cursor,
  );
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = Math.round(x.invert(((event.clientX - box.left) / box.width) * WIDTH));
    const point = found[Math.max(0, Math.min(found.length - 1, at))];
    if (point) tell(point);
  });
  const key = h("ul", { class: "legend" }, h("li", { class: "key original" }, "original in its dtype"), h("li", { class: "key fused" }, "fused"), h("li", { class: "key dot" }, "result of a match"));
  const rows = found.map((point) => [
    h("button", { type: "button", class: "link", onclick: () => view.showNode(bundle, point.border.node) }, point.border.node),
    point.border.layer || "the model itself",
    point.border.rule ? code(point.border.rule) : "",
    exponent(point.border.rms_fp64),
    exponent(point.border.original),
    exponent(point.border.fused),
  ]);
  const columns = ["node", "module", "rule", "rms in f64", "original", "fused"].map((name, at) => ({ title: name, number: at > 2 }));
  return h(
    "div",
    {},
    key,
    h("div", { class: "scroll chart-frame", tabindex: 0, role: "region", "aria-label": `Chart of ${title}` }, svg),
    readout,
    h("details", {}, h("summary", {}, `Every border: ${found.length}`), table(`Errors of ${title}`, columns, rows, `Case ${growth.case}.`)),
  );
}

function verdicts(growth: Growth): HTMLElement | null {
  if (growth.verdicts.length === 0) return null;
  const items = growth.verdicts.map((one) =>
    h("li", {}, [one.meaning, one.targets.length ? `in ${one.targets.join(", ")}` : "", one.rule ? `rule ${one.rule}` : "", one.node ? `at ${one.node}` : "", one.detail].filter(Boolean).join("; ")),
  );
  return h("div", { class: growth.verdicts.every((one) => one.limit) ? "note" : "note alarm" }, h("p", {}, "Differences that were found:"), h("ul", {}, ...items));
}

export function growth(bundles: Bundle[], view: GraphView): HTMLElement {
  const parts = bundles.flatMap((bundle) => {
    const title = titleOf(bundle, bundles);
    const how = `The errors of the layers were not measured. \`${bundle.measure}\` measures them and shows them here.`;
    return [
      bundles.length > 1 ? h("h3", {}, title) : null,
      bundle.growth ? verdicts(bundle.growth) : null,
      bundle.growth ? chart(bundle, bundle.growth, title, view) : prose("absent", how),
    ];
  });
  return section("growth", "Error growth", "How the error against float64 grows through the layers, of the original in its own dtype and of the fused program.", ...parts);
}
