// Builds the page of `fuseconv report`: one HTML file with its script and style inside, and an empty place for the data.
// The hashes of both are in its Content-Security-Policy, so that nothing else in the file can run.

import { createHash } from "node:crypto";
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { build } from "esbuild";

const output = resolve(process.argv[2] ?? "report.html");

const built = await build({
  entryPoints: ["src/main.ts", "src/style.css"],
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "iife",
  target: "es2022",
  metafile: true,
  outdir: "unused",
  write: false,
});
const text = (suffix) => built.outputFiles.find((file) => file.path.endsWith(suffix)).text.trim();
const hash = (source) => `'sha256-${createHash("sha256").update(source).digest("base64")}'`;

// The licences of the packages of which something is in the page, which its footer shows.
function licenses() {
  const packages = new Set(Object.keys(built.metafile.inputs).flatMap((path) => /^node_modules\/(?:@[^/]+\/)?[^/]+/.exec(path)?.[0] ?? []));
  return [...packages].sort().map((folder) => {
    const { name, version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
    return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
  });
}

const script = text(".js").replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const worker = readFileSync("node_modules/elkjs/lib/elk-worker.min.js", "utf8").replaceAll("</script", "<\\/script").replaceAll("<!--", "<\\!--");
const style = text(".css");
const policy = `default-src 'none'; script-src ${hash(script)}; style-src ${hash(style)}; worker-src blob:; base-uri 'none'; form-action 'none'`;
const parts = { policy, script, style, worker, licenses: licenses().join("\n\n").replaceAll("</", "< /") };
const page = readFileSync("src/page.html", "utf8").replace(/\{\{(\w+)\}\}/g, (_, name) => parts[name]);

mkdirSync(dirname(output), { recursive: true });
writeFileSync(output, page);
