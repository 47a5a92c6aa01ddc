// The files of a bundle with their sizes and checksums, by folder.

import type { Bundle } from "./data";
import { code, h, section, table } from "./dom";
import { bytes, plural, titleOf } from "./format";

function groups(bundle: Bundle): Map<string, number> {
  const found = new Map<string, number>();
  for (const [name, file] of Object.entries(bundle.files)) {
    const group = name.includes("/") ? `${name.split("/")[0]}/` : name;
    found.set(group, (found.get(group) ?? 0) + file.size);
  }
  return found;
}

function bar(share: number): HTMLElement {
  const element = h("span", { class: "bar", "aria-hidden": "true" });
  element.style.setProperty("--share", String(share));
  return element;
}

export function files(bundles: Bundle[]): HTMLElement {
  const sizes = bundles.map(groups);
  const names = [...new Set(sizes.flatMap((one) => [...one.keys()]))];
  const most = Math.max(...sizes.flatMap((one) => [...one.values()]), 1);
  names.sort((one, other) => Math.max(...sizes.map((size) => size.get(other) ?? 0)) - Math.max(...sizes.map((size) => size.get(one) ?? 0)));
  const rows = names.map((name) => [
    code(name),
    ...sizes.map((size) => {
      const value = size.get(name);
      return value === undefined ? h("span", { class: "none" }, "none") : h("span", { class: "sized" }, bar(value / most), bytes(value));
    }),
  ]);
  const columns = [{ title: "file or folder" }, ...bundles.map((bundle) => ({ title: bundles.length > 1 ? titleOf(bundle, bundles) : "size", number: true }))];
  const lists = bundles.map((bundle) => {
    const title = titleOf(bundle, bundles);
    const entries = Object.entries(bundle.files);
    const listed = entries.map(([name, file]) => [code(name), bytes(file.size), h("code", { class: "hash" }, file.sha256)]);
    return h(
      "details",
      {},
      h("summary", {}, `${bundles.length > 1 ? `${title}: ` : ""}${plural(entries.length, "file")} with checksums`),
      table(`Files of ${title}`, [{ title: "file" }, { title: "size", number: true }, { title: "SHA-256" }], listed),
    );
  });
  return section("files", "Files", "What the folder holds. The manifest has the size and the SHA-256 of every other file.", table("Sizes", columns, rows), ...lists);
}
