// Draws the report from the data in the page.

import type { Report } from "./data";
import { h } from "./dom";
import { files } from "./files";
import { titleOf } from "./format";
import { GraphView } from "./graph";
import { growth } from "./growth";
import { matches, misses } from "./matches";
import { parity } from "./parity";
import { summary } from "./summary";
import { times } from "./times";

const report = JSON.parse(document.getElementById("data")?.textContent ?? "null") as Report;
const { bundles } = report;
const names = bundles.map((bundle) => titleOf(bundle, bundles));
document.title = `${names.join(" and ")}: fuseconv report`;

const view = new GraphView(bundles);
const sections = [
  summary(bundles),
  parity(bundles),
  view.element,
  matches(bundles, view),
  misses(bundles, view),
  growth(bundles, view),
  times(bundles),
  files(bundles),
];
const links = sections.map((one) => h("li", {}, h("a", { href: `#${one.id}` }, one.querySelector("h2")?.textContent ?? "")));
const heading = names.flatMap((name, at) => (at > 0 ? [h("span", { class: "versus" }, " and "), name] : [name]));

document.getElementById("report")?.replaceChildren(
  h("a", { class: "skip", href: "#main" }, "Skip to the report"),
  h("header", {}, h("p", { class: "eyebrow" }, "fuseconv report"), h("h1", {}, ...heading)),
  h("nav", { "aria-label": "Sections" }, h("ul", {}, ...links)),
  h("main", { id: "main", tabindex: -1 }, ...sections),
  h(
    "footer",
    {},
    h("p", {}, `Written by fuseconv ${report.fuseconv}. Graphs are placed by ELK.`),
    h("details", {}, h("summary", {}, "Licences of what is in this page"), h("pre", {}, document.getElementById("licenses")?.textContent ?? "")),
  ),
);
view.start();
