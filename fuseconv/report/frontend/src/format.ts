// Numbers and names as people read them.

import type { Bundle, Line } from "./data";

export function exponent(value: number | null | undefined): string {
  if (value === null || value === undefined) return "not finite";
  return value === 0 ? "0" : value.toExponential(1).replace(/e([+-])(\d)$/, "e$10$2");
}

export function bytes(size: number): string {
  const units = ["B", "kB", "MB", "GB"];
  let amount = size;
  let unit = 0;
  while (amount >= 1000 && unit < 3) {
    amount /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? amount : amount.toFixed(1)} ${units[unit]}`;
}

export function microseconds(us: number): string {
  return us >= 1000 ? `${(us / 1000).toFixed(us >= 100_000 ? 0 : 2)} ms` : `${us.toFixed(1)} µs`;
}

export function times(factor: number): string {
  return `${factor.toFixed(2)}×`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** The op without its namespace and overload: `add_layer_norm` for `fuseconv.add_layer_norm.default`. */
export function shortOp(op: string): string {
  const parts = op.split(".");
  return (parts.length > 1 ? parts[1] : parts[0]) ?? op;
}

export function isFused(op: string): boolean {
  return !op.startsWith("aten.") && op.includes(".");
}

/** A source line without the folders that only the machine of the conversion has. */
export function place(line: Line, files: string[]): string {
  return `${shortPath(files[line.file] ?? "")}:${line.line}`;
}

export function shortPath(path: string): string {
  const packaged = path.split("site-packages/");
  return packaged.length > 1 ? (packaged[packaged.length - 1] ?? path) : path.split("/").slice(-2).join("/");
}

export function titleOf(bundle: Bundle, bundles: Bundle[]): string {
  const same = bundles.filter((one) => one.name === bundle.name).length > 1;
  return same ? `${bundle.name} (${bundles.indexOf(bundle) + 1})` : bundle.name;
}
