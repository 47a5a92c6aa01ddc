// What the bundle is, how exact and how fast: the figures first, then where they come from.

import { type Bundle, ops } from "./data";
import { h, section, table } from "./dom";
import { bytes, exponent, microseconds, plural, titleOf } from "./format";

interface Figure {
  label: string;
  value: string;
  note: string;
  bad?: boolean;
}

function figures(bundle: Bundle): Figure[] {
  const passing = bundle.parity.filter((row) => row.ok || row.limit).length;
  const ordinary = bundle.parity.filter((row) => row.kind !== "special");
  const worst = Math.max(...ordinary.map((row) => row.max_abs ?? Infinity), 0);
  const applied = bundle.matches.filter((match) => match.applied);
  const found: Figure[] = [
    {
      label: "Parity",
      value: `${passing} / ${bundle.parity.length}`,
      note: bundle.mismatch ? "kept with --allow-mismatch" : `rows pass, in ${plural(Object.keys(bundle.targets).length, "target")}`,
      bad: bundle.mismatch || passing < bundle.parity.length,
    },
    { label: "Largest error", value: exponent(Number.isFinite(worst) ? worst : null), note: "absolute, against the original" },
    {
      label: "Matches",
      value: String(applied.length),
      note: `of ${plural(new Set(applied.map((match) => match.rule)).size, "rule")}`,
    },
  ];
  if (bundle.captured) {
    const after = bundle.fused ? ` → ${ops(bundle.fused)}` : "";
    found.push({ label: "Ops", value: `${ops(bundle.captured)}${after}`, note: bundle.fused ? "captured → fused" : "captured" });
  }
  const speeds = Object.entries(bundle.tuned?.speeds ?? {}).sort((one, other) => one[1].us - other[1].us);
  const fastest = speeds[0];
  if (fastest) found.push({ label: "Fastest", value: microseconds(fastest[1].us), note: `a call of ${fastest[0]}` });
  const size = Object.values(bundle.files).reduce((sum, file) => sum + file.size, 0);
  found.push({ label: "Size", value: bytes(size), note: plural(Object.keys(bundle.files).length, "file") });
  return found;
}

function facts(bundle: Bundle): Record<string, string> {
  const { environment: made, source } = bundle;
  return {
    Source: source.repository ? `${source.form}: ${source.repository} at ${source.commit}` : source.form,
    Command: bundle.command ?? "",
    "Git commit": bundle.revision ?? "",
    "Verified against": source.original === "archive" ? "the program of the archive" : source.original === "module" ? "the module itself" : "",
    Inputs: bundle.inputs.join("\n"),
    Outputs: bundle.outputs.join(", "),
    "Weights and device": `${bundle.dtype} on ${bundle.device}`,
    Targets: Object.keys(bundle.targets).join(", "),
    Packages: Object.entries(bundle.packages).map(([target, each]) => `${target} is compiled for ${each.join(" and for ")}`).join("\n"),
    "Left out": bundle.left_out.map((one) => `${one.target}: ${one.cause}: ${one.reason}`).join("\n"),
    "Made with": `fuseconv ${bundle.fuseconv}, torch ${made.torch}${made.cuda ? `, CUDA ${made.cuda}` : ""}, ONNX ${made.onnx}${made.onnxruntime ? `, ONNX Runtime ${made.onnxruntime}` : ""}, Python ${made.python}`,
    "Made on": `${made.machine} with ${made.cpu}${made.gpu ? `, GPU of compute capability ${made.gpu}` : ""}, ${made.platform}`,
    "Timed on": bundle.tuned?.device ?? "not timed",
    "SHA-256 of the source": source.sha256,
    "SHA-256 of the manifest": bundle.sha256,
  };
}

export function summary(bundles: Bundle[]): HTMLElement {
  const strips = bundles.map((bundle) =>
    h(
      "div",
      { class: "strip" },
      bundles.length > 1 ? h("h3", {}, titleOf(bundle, bundles)) : null,
      h(
        "dl",
        { class: "figures" },
        ...figures(bundle).map((one) =>
          h("div", { class: one.bad ? "bad" : undefined }, h("dt", {}, one.label), h("dd", { class: "value" }, one.value), h("dd", {}, one.note)),
        ),
      ),
    ),
  );
  const all = bundles.map(facts);
  const names = Object.keys(all[0] ?? {}).filter((name) => all.some((one) => one[name]));
  const rows = names.map((name) => {
    const differs = new Set(all.map((one) => one[name])).size > 1;
    return [name, ...all.map((one) => h("span", { class: differs ? "fact differs" : "fact" }, one[name] ?? ""))];
  });
  const columns = [{ title: "what" }, ...bundles.map((bundle) => ({ title: bundles.length > 1 ? titleOf(bundle, bundles) : "value" }))];
  const details = table("Source, machine and versions", columns, rows);
  details.classList.add("facts");
  if (bundles.length === 1) details.classList.add("single");
  return section("summary", "Summary", "What was converted, from what, on which machine, and how exact it is.", ...strips, details);
}
