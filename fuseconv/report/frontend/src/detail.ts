// What is known of a selected op: its values, its source line, and the matches that it is in.

import type { Bundle, Graph, GraphNode, Match, Trial } from "./data";
import { code, h } from "./dom";
import { exponent, microseconds, place, times } from "./format";

/** Matches of a bundle by the names of the nodes that they replace, and by the positions of those that replace them. */
export class MatchIndex {
  private readonly before = new Map<string, number[]>();
  private readonly after = new Map<number, number[]>();
  readonly captured = new Map<string, number>();

  constructor(readonly bundle: Bundle) {
    bundle.captured?.nodes.forEach((node, at) => this.captured.set(node.name, at));
    bundle.matches.forEach((match, at) => {
      for (const name of match.nodes) this.before.set(name, [...(this.before.get(name) ?? []), at]);
      for (const node of match.after) this.after.set(node, [...(this.after.get(node) ?? []), at]);
    });
  }

  of(form: Form, graph: Graph, node: number): number[] {
    const name = graph.nodes[node]?.name ?? "";
    return (form === "captured" ? this.before.get(name) : this.after.get(node)) ?? [];
  }

  /** The nodes of a match in one form of the graph. */
  nodes(form: Form, match: number): number[] {
    const one = this.bundle.matches[match];
    if (!one) return [];
    if (form === "fused") return one.after;
    return one.nodes.flatMap((name) => this.captured.get(name) ?? []);
  }
}

export type Form = "captured" | "fused";

function pairs(entries: [string, Node | string | null | undefined][]): HTMLElement {
  const shown = entries.filter((entry): entry is [string, Node | string] => Boolean(entry[1]));
  return h("dl", { class: "pairs" }, ...shown.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

function source(node: GraphNode, graph: Graph): HTMLElement | null {
  if (!node.line) return null;
  const where = h("span", { title: graph.files[node.line.file] }, `${place(node.line, graph.files)} in ${node.line.function}`);
  return h("div", { class: "source" }, where, node.line.code ? h("pre", {}, node.line.code) : null);
}

function choices(match: Match): HTMLElement | null {
  const entries = Object.entries(match.choices);
  if (entries.length === 0) return null;
  return h(
    "ul",
    { class: "choices" },
    ...entries.map(([target, one]) =>
      h(
        "li",
        {},
        `${target}: ${microseconds(one.fused_us)} with, ${microseconds(one.unfused_us)} without (${times(one.unfused_us / one.fused_us)}, noise ${microseconds(one.noise_us)}): ${one.applied ? "replaced" : "left alone"}`,
      ),
    ),
  );
}

/** What the numerical test of a match found: its error on the values of the model, and on how many others it agreed. */
function tested({ equal, rmse, rmse_matched, draws }: Trial): string {
  const error = equal
    ? "the same results as the matched ops"
    : rmse === null || rmse_matched === null
      ? "agrees with the matched ops, errors not measured"
      : `rmse against float64 ${exponent(rmse)}, ${exponent(rmse_matched)} before`;
  return `tested alone: ${error}; agrees also on ${draws} sets of adversarial values`;
}

/** The errors of a match: of its numerical test, and where its results are in the model, if they were measured. */
function errors(match: Match, bundle: Bundle): HTMLElement | null {
  const found = bundle.growth?.borders.filter((one) => one.rule === match.rule && match.nodes.includes(one.node)) ?? [];
  if (found.length === 0 && !match.trial) return null;
  return h(
    "ul",
    { class: "choices" },
    match.trial ? h("li", {}, tested(match.trial)) : null,
    ...found.map((one) => h("li", {}, `at ${one.node}: rmse against float64 ${exponent(one.fused)} fused, ${exponent(one.original)} original`)),
  );
}

export function matchDetail(match: Match, bundle: Bundle, index: MatchIndex, heading: "h3" | "h4" = "h3"): HTMLElement {
  const graph = bundle.captured;
  const nodes = match.nodes.map((name, at) => {
    const position = index.captured.get(name);
    const node = position === undefined ? undefined : graph?.nodes[position];
    return h(
      "li",
      {},
      code(match.ops[at] ?? ""),
      h("span", { class: "name" }, ` ${name}`),
      node?.op === match.ops[at] ? null : h("p", { class: "none" }, node ? "as an earlier match left it" : "made by an earlier match"),
      node && graph ? source(node, graph) : null,
    );
  });
  const operands = Object.entries(match.operands).map(([name, value]) => `${name} = ${value}`);
  return h(
    "div",
    { class: "match" },
    h(heading, {}, h("span", { class: `stage ${match.stage}` }, match.stage), " ", code(match.rule)),
    bundle.docs[match.rule] ? h("p", { class: "doc" }, bundle.docs[match.rule] ?? "") : null,
    match.applied ? null : h("p", { class: "note" }, Object.keys(match.choices).length ? "Left alone in every target: it was measured to be no faster." : "Not applied: it is disabled in the plan."),
    h("p", { class: "label" }, "Replaces"),
    h("ol", { class: "nodes" }, ...nodes),
    h("p", { class: "label" }, "With"),
    h("pre", {}, match.replace.join("\n")),
    operands.length ? h("pre", { class: "operands" }, operands.join("\n")) : null,
    Object.keys(match.choices).length ? h("p", { class: "label" }, "Time of a call of the model") : null,
    choices(match),
    errors(match, bundle) ? h("p", { class: "label" }, "Error") : null,
    errors(match, bundle),
  );
}

export function nodeDetail(node: GraphNode, graph: Graph, form: Form, bundle: Bundle, index: MatchIndex): HTMLElement {
  const at = graph.nodes.indexOf(node);
  const module = graph.modules[node.module];
  const found = index.of(form, graph, at);
  const misses = form === "captured" ? bundle.misses.filter((miss) => miss.node === node.name) : [];
  return h(
    "div",
    {},
    h("h3", {}, node.kind === "op" ? code(node.op) : node.kind),
    pairs([
      ["name", node.name],
      ["value", node.types.join(", ")],
      ["module", module?.path ? `${module.path}: ${module.kind}` : (module?.kind ?? "")],
    ]),
    source(node, graph),
    node.arguments.length ? h("pre", { class: "operands" }, node.arguments.join("\n")) : null,
    ...found.map((one) => bundle.matches[one]).map((match) => (match ? matchDetail(match, bundle, index, "h4") : null)),
    misses.length ? h("p", { class: "label" }, "Not matched here") : null,
    misses.length ? h("ul", { class: "choices" }, ...misses.map((miss) => h("li", {}, code(miss.rule), ` ${miss.reason}`))) : null,
  );
}
