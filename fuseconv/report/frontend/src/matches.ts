// The matches by rule, and the places where a rule nearly applied, with the reasons.

import type { Bundle, Miss } from "./data";
import { code, h, section, table } from "./dom";
import { plural, shortPath, titleOf } from "./format";
import type { GraphView } from "./graph";

const ORDER = ["fuse", "search", "structure", "canonical"];

interface RuleRow {
  rule: string;
  stage: string;
}

function rulesOf(bundles: Bundle[]): RuleRow[] {
  const found = new Map<string, RuleRow>();
  for (const bundle of bundles) for (const { rule, stage } of bundle.matches) found.set(`${stage} ${rule}`, { rule, stage });
  return [...found.values()].sort((one, other) => ORDER.indexOf(one.stage) - ORDER.indexOf(other.stage) || one.rule.localeCompare(other.rule));
}

function listed(bundle: Bundle, row: RuleRow, view: GraphView): HTMLElement | string {
  const found = bundle.matches.flatMap((match, at) => (match.rule === row.rule && match.stage === row.stage ? [{ match, at }] : []));
  if (found.length === 0) return h("span", { class: "none" }, "none");
  const buttons = found.map(({ match, at }) => {
    const result = match.nodes[match.nodes.length - 1] ?? "";
    const state = match.applied ? "" : " (left alone)";
    return bundle.captured
      ? h("button", { type: "button", class: "link", onclick: () => view.showMatch(bundle, at) }, `${result}${state}`)
      : h("span", {}, `${result}${state}`);
  });
  const ops = found.reduce((sum, { match }) => sum + match.nodes.length, 0);
  const left = found.filter(({ match }) => !match.applied).length;
  return h(
    "details",
    { class: "inline" },
    h("summary", {}, `${plural(found.length, "match", "matches")}, ${plural(ops, "op")}${left ? `; ${left} left alone` : ""}`),
    h("div", { class: "chips" }, ...buttons),
  );
}

export function matches(bundles: Bundle[], view: GraphView): HTMLElement {
  const rows = rulesOf(bundles).map((row) => [
    h("span", {}, code(row.rule), h("small", { class: "where doc" }, bundles.map((one) => one.docs[row.rule]).find(Boolean) ?? "")),
    h("span", { class: `stage ${row.stage}` }, row.stage),
    ...bundles.map((bundle) => listed(bundle, row, view)),
  ]);
  const columns = [{ title: "rule" }, { title: "stage" }, ...bundles.map((bundle) => ({ title: bundles.length > 1 ? titleOf(bundle, bundles) : "matches" }))];
  const body = rows.length ? table("Matches by rule", columns, rows) : h("p", { class: "absent" }, "No rule applies to this model.");
  return section("matches", "Matches", "What was replaced, rule by rule. Open a row and press a node to see that match in the graph.", body);
}

interface Kind {
  miss: Miss;
  places: Miss[];
}

/** Misses with the same rule and the same reason but for the numbers of nodes, as equal layers have them. */
function kinds(misses: Miss[]): Kind[] {
  const found = new Map<string, Kind>();
  for (const miss of misses) {
    const key = [miss.rule, miss.rejected, miss.refused, miss.reason.replace(/_\d+\b/g, "")].join("\n");
    const kind = found.get(key) ?? { miss, places: [] };
    kind.places.push(miss);
    found.set(key, kind);
  }
  const rank = ({ miss }: Kind) => (miss.rejected ? 2 : 0) + (miss.refused ? 1 : 0) + miss.matched / (miss.ops || 1);
  return [...found.values()].sort((one, other) => rank(other) - rank(one));
}

function verdict(miss: Miss): string {
  if (miss.rejected) return "its test failed";
  return miss.refused ? "not allowed" : `${miss.matched} of ${miss.ops} ops`;
}

function missed(bundle: Bundle, title: string, view: GraphView): HTMLElement {
  const found = kinds(bundle.misses);
  const rows = found.map(({ miss, places }) => {
    const where = places.map((one) =>
      view.has(bundle, one.node)
        ? h("button", { type: "button", class: "link", onclick: () => view.showNode(bundle, one.node) }, one.node)
        : code(one.node),
    );
    const spots = places.length > 3 ? h("details", { class: "inline" }, h("summary", {}, plural(places.length, "place")), h("div", { class: "chips" }, ...where)) : h("div", { class: "chips" }, ...where);
    const line = miss.where ? h("small", { class: "where", title: miss.where }, shortPath(miss.where)) : null;
    return [code(miss.rule), verdict(miss), h("span", { class: "reason" }, miss.reason, line), spots];
  });
  if (rows.length === 0) return h("p", { class: "absent" }, "The plan has no near miss.");
  return table(`Near misses of ${title}`, [{ title: "rule" }, { title: "found" }, { title: "why it does not apply" }, { title: "where" }], rows);
}

export function misses(bundles: Bundle[], view: GraphView): HTMLElement {
  const parts = bundles.flatMap((bundle) => [
    bundles.length > 1 ? h("h3", {}, titleOf(bundle, bundles)) : null,
    missed(bundle, titleOf(bundle, bundles), view),
  ]);
  return section("misses", "Near misses", "Where a rule almost applied, and the first thing that differs. Places that differ alike share a row.", ...parts);
}
