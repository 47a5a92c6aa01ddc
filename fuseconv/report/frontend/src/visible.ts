// Which boxes of a graph are visible: an op, or a module in place of what is in it, where it is not open.

import type { Graph, GraphNode } from "./data";
import { plural, shortOp } from "./format";

export interface Box {
  id: string;
  parent: string | null;
  kind: "op" | "input" | "output" | "module" | "open";
  title: string;
  note: string;
  /** Position of the node, for an op, input or output. */
  node: number | null;
  /** Path of the module, for a module. */
  path: string | null;
  /** The nodes that are this box or in it. */
  nodes: number[];
}

export interface Visible {
  boxes: Box[];
  edges: [string, string][];
  /** The box of each node that is drawn. */
  boxOf: Map<number, string>;
  /** How many ops are not drawn: they compute sizes or check something, and return no tensor. */
  undrawn: number;
}

export class Modules {
  /** Of each module the nodes in it, also in modules inside of it. */
  readonly inside: number[][];
  /** Whether each node is drawn: what returns a tensor is. */
  readonly drawn: boolean[];

  constructor(readonly graph: Graph) {
    this.drawn = graph.nodes.map((node) => node.kind !== "op" || node.types.some((type) => type !== ""));
    this.inside = graph.modules.map(() => []);
    graph.nodes.forEach((node, at) => {
      if (node.kind === "op" && this.drawn[at]) for (const module of this.chain(node)) this.inside[module]?.push(at);
    });
  }

  /** The modules around a node, the outermost first, without the model itself. */
  chain(node: GraphNode): number[] {
    const found: number[] = [];
    for (let at = node.module; at > 0; at = this.graph.modules[at]?.parent ?? 0) found.unshift(at);
    return found;
  }

  /** The modules around a node that are boxes: a module of one op is not. */
  boxed(node: GraphNode): number[] {
    return this.chain(node).filter((module) => (this.inside[module]?.length ?? 0) > 1);
  }

  path(module: number): string {
    return this.graph.modules[module]?.path ?? "";
  }

  /** The modules to open at first: level by level, as long as `most` boxes are not exceeded, and then one more module. */
  opening(most: number): Set<string> {
    const open = new Set<string>();
    for (let depth = 0; ; depth += 1) {
      const level = [...new Set(this.graph.nodes.flatMap((node) => this.boxed(node)[depth] ?? []))].map((one) => this.path(one));
      const next = new Set([...open, ...level]);
      if (level.length === 0) return open;
      if (this.visible(next).boxes.length > most) {
        const one = level.find((path) => /\d$/.test(path)) ?? level[0];
        return one === undefined ? open : open.add(one);
      }
      for (const path of level) open.add(path);
    }
  }

  every(): Set<string> {
    return new Set(this.graph.nodes.flatMap((node) => this.boxed(node).map((module) => this.path(module))));
  }

  visible(open: Set<string>): Visible {
    const boxes = new Map<string, Box>();
    const boxOf = new Map<number, string>();
    this.graph.nodes.forEach((node, at) => {
      if (!this.drawn[at]) return;
      let parent: string | null = null;
      for (const module of this.boxed(node)) {
        const id = `m${module}`;
        const isOpen = open.has(this.path(module));
        if (!boxes.has(id)) boxes.set(id, this.moduleBox(id, module, parent, isOpen));
        if (!isOpen) {
          boxOf.set(at, id);
          return;
        }
        parent = id;
      }
      boxes.set(`n${at}`, nodeBox(node, at, parent));
      boxOf.set(at, `n${at}`);
    });
    const edges = new Map<string, [string, string]>();
    this.graph.nodes.forEach((node, at) => {
      for (const input of node.inputs) {
        const [from, to] = [boxOf.get(input), boxOf.get(at)];
        if (from && to && from !== to) edges.set(`${from} ${to}`, [from, to]);
      }
    });
    return {
      boxes: [...boxes.values()],
      edges: [...edges.values()],
      boxOf,
      undrawn: this.drawn.filter((one) => !one).length,
    };
  }

  private moduleBox(id: string, at: number, parent: string | null, open: boolean): Box {
    const module = this.graph.modules[at];
    const path = module?.path ?? "";
    const outer = this.graph.modules[Number(parent?.slice(1) ?? 0)]?.path ?? "";
    const name = outer && path.startsWith(`${outer}.`) ? path.slice(outer.length + 1) : path;
    const nodes = this.inside[at] ?? [];
    const title = module?.kind ? `${name}: ${module.kind}` : name;
    return { id, parent, kind: open ? "open" : "module", title, note: plural(nodes.length, "op"), node: null, path, nodes };
  }
}

function nodeBox(node: GraphNode, at: number, parent: string | null): Box {
  const title = node.kind === "op" ? shortOp(node.op) : node.name;
  return { id: `n${at}`, parent, kind: node.kind, title, note: node.types.join(", "), node: at, path: null, nodes: [at] };
}
