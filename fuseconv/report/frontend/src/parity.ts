// The parity matrix: cases down, targets across; each cell is the largest error of the outputs.

import type { Bundle, ParityRow } from "./data";
import { h, section, table } from "./dom";
import { exponent, titleOf } from "./format";

function largest(rows: ParityRow[], pick: (row: ParityRow) => number | null): number | null {
  const values = rows.map(pick);
  return values.includes(null) ? null : Math.max(...(values as number[]));
}

function cell(rows: ParityRow[]): HTMLElement | string {
  if (rows.length === 0) return h("span", { class: "none" }, "not run");
  const failing = rows.find((row) => !row.ok && !row.limit);
  const state = failing ? "fail" : rows.some((row) => !row.ok) ? "limit" : "ok";
  const reason = rows.find((row) => row.reason)?.reason;
  const figure = exponent(largest(rows, (row) => row.max_abs));
  return h(
    "span",
    { class: `cell ${state}`, title: reason },
    h("span", { class: "state" }, state === "fail" ? "FAIL" : state),
    ` ${figure}`,
  );
}

function matrix(bundle: Bundle, title: string): HTMLElement {
  const targets = [...new Set([...Object.keys(bundle.targets), ...bundle.parity.map((row) => row.target)])].sort();
  const cases = [...new Set(bundle.parity.map((row) => row.case))];
  const rows = cases.map((name) => [
    name,
    ...targets.map((target) => cell(bundle.parity.filter((row) => row.case === name && row.target === target))),
  ]);
  const tolerance = bundle.tolerance;
  const note = Object.keys(tolerance).length
    ? `Largest absolute error against the original, over all outputs. Tolerance for ${bundle.dtype}: atol ${exponent(tolerance.atol)}, rtol ${exponent(tolerance.rtol)}, or an rmse against float64 of at most about ${tolerance.factor} times the original's.`
    : "Largest absolute error against the original, over all outputs.";
  return table(`Parity of ${title}`, [{ title: "case" }, ...targets.map((target) => ({ title: target, number: true }))], rows, note);
}

function everyRow(bundle: Bundle, title: string): HTMLElement {
  const columns = [
    { title: "target" },
    { title: "case" },
    { title: "output" },
    { title: "result" },
    { title: "max abs", number: true },
    { title: "max rel", number: true },
    { title: "rmse vs f64", number: true },
    { title: "original's", number: true },
    { title: "reason" },
  ];
  const rows = bundle.parity.map((row) => [
    row.target,
    row.case,
    row.output,
    row.ok ? "ok" : row.limit ? "limit" : "FAIL",
    exponent(row.max_abs),
    exponent(row.max_rel),
    exponent(row.rmse_vs_fp64),
    exponent(row.rmse_original_vs_fp64),
    row.reason ?? "",
  ]);
  return h("details", {}, h("summary", {}, `Every row: ${bundle.parity.length}`), table(`Every row of ${title}`, columns, rows));
}

export function parity(bundles: Bundle[]): HTMLElement {
  const parts = bundles.flatMap((bundle) => {
    const title = titleOf(bundle, bundles);
    const limits = bundle.limits.map((one) => h("li", {}, `${one.target}, case ${one.case}, output ${one.output}: ${one.reason}`));
    return [
      bundles.length > 1 ? h("h3", {}, title) : null,
      matrix(bundle, title),
      limits.length ? h("div", { class: "note" }, h("p", {}, "Limits of runtimes for special values, with and without fusions:"), h("ul", {}, ...limits)) : null,
      everyRow(bundle, title),
    ];
  });
  return section(
    "parity",
    "Parity",
    "Every target against the original model and against float64, as measured at the conversion. `fuseconv verify` measures it again on any machine.",
    ...parts,
  );
}
