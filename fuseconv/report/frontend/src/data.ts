// What the page draws: the JSON of fuseconv/report/page.py, whose dataclasses document each field.

export interface Module {
  path: string;
  kind: string;
  parent: number;
}

export interface Line {
  file: number;
  line: number;
  function: string;
  code: string;
}

export interface GraphNode {
  name: string;
  kind: "input" | "op" | "output";
  op: string;
  module: number;
  inputs: number[];
  arguments: string[];
  types: string[];
  line: Line | null;
  made: { rule: string; nodes: string[] }[];
}

export interface Graph {
  modules: Module[];
  files: string[];
  nodes: GraphNode[];
}

export interface Choice {
  applied: boolean;
  fused_us: number;
  unfused_us: number;
  noise_us: number;
}

export interface Trial {
  equal: boolean;
  rmse: number | null;
  rmse_matched: number | null;
  draws: number;
}

export interface Match {
  rule: string;
  stage: string;
  nodes: string[];
  ops: string[];
  operands: Record<string, string>;
  replace: string[];
  applied: boolean;
  choices: Record<string, Choice>;
  trial: Trial | null;
  after: number[];
}

export interface Miss {
  rule: string;
  node: string;
  reason: string;
  expected: string;
  found: string;
  where: string;
  differs: string;
  matched: number;
  ops: number;
  refused: boolean;
  rejected: boolean;
}

export interface ParityRow {
  target: string;
  case: string;
  kind?: string;
  output: string;
  ok: boolean;
  limit?: boolean;
  max_abs: number | null;
  max_rel: number | null;
  rmse_vs_fp64: number | null;
  rmse_original_vs_fp64: number | null;
  reason?: string;
}

export interface Speed {
  us: number;
  fused_us: number;
  unfused_us: number;
  noise_us: number;
  measured: number;
  classes: number;
}

export interface Gain extends Choice {
  rule: string;
  target: string;
  matches: number;
  speedup: number;
  low: number;
  high: number;
}

export interface LayerError {
  node: string;
  layer: string;
  op: string;
  rule: string | null;
  rms_fp64: number;
  original: number | null;
  fused: number | null;
}

export interface Growth {
  case: string;
  borders: LayerError[];
  verdicts: { meaning: string; targets: string[]; node: string | null; rule: string | null; detail: string; limit: boolean }[];
  compared: string[];
}

export interface Bundle {
  name: string;
  fuseconv: string;
  sha256: string;
  source: { form: string; sha256: string; dtype?: string; original?: string; repository?: string; commit?: string };
  command: string | null;
  revision: string | null;
  environment: Record<string, string | null>;
  inputs: string[];
  outputs: string[];
  device: string;
  dtype: string;
  targets: Record<string, string>;
  packages: Record<string, string[]>;
  mismatch: boolean;
  tolerance: Record<string, number>;
  parity: ParityRow[];
  left_out: { target: string; cause: string; reason: string }[];
  limits: { target: string; case: string; output: string; reason: string }[];
  tuned: { device: string; speeds: Record<string, Speed>; untimed: Record<string, string>; needed: Record<string, Record<string, string>> } | null;
  gains: Gain[];
  rules: { name: string; sha256: string; count: number }[];
  docs: Record<string, string>;
  matches: Match[];
  misses: Miss[];
  captured: Graph | null;
  fused: Graph | null;
  drawn_of: string | null;
  measure: string;
  growth: Growth | null;
  files: Record<string, { sha256: string; size: number }>;
}

export interface Report {
  fuseconv: string;
  bundles: Bundle[];
}

export function ops(graph: Graph | null): number {
  return graph ? graph.nodes.filter((node) => node.kind === "op").length : 0;
}
