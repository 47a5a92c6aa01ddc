// Places boxes and edges with ELK's layered algorithm, modules around what is in them. ELK runs in a worker, so that the
// page can be read and pressed while a large graph is placed.

import ELK, { type ElkExtendedEdge, type ElkNode } from "elkjs/lib/elk-api.js";
import type { Box, Visible } from "./visible";

export interface Placed {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Layout extends Placed {
  boxes: Map<string, Placed>;
  edges: { from: string; to: string; points: { x: number; y: number }[] }[];
}

const TITLE = 7.3;
const NOTE = 6.2;
const PADDING = 24;
export const SIGN = 18;
export const MOST_CHARACTERS = 40;

const SPACING = {
  "elk.spacing.nodeNode": "18",
  "elk.spacing.edgeNode": "10",
  "elk.spacing.edgeEdge": "8",
  "elk.layered.spacing.nodeNodeBetweenLayers": "24",
  "elk.layered.spacing.edgeNodeBetweenLayers": "10",
  "elk.layered.spacing.edgeEdgeBetweenLayers": "8",
};

const OPTIONS = {
  ...SPACING,
  "elk.algorithm": "layered",
  "elk.direction": "DOWN",
  "elk.hierarchyHandling": "INCLUDE_CHILDREN",
  "elk.json.shapeCoords": "ROOT",
  "elk.json.edgeCoords": "ROOT",
  "elk.edgeRouting": "ORTHOGONAL",
  "elk.layered.mergeEdges": "true",
  "elk.layered.nodePlacement.strategy": "BRANDES_KOEPF",
  "elk.layered.nodePlacement.bk.fixedAlignment": "BALANCED",
  "elk.padding": "[top=16,left=16,bottom=16,right=16]",
};

const source = new Blob([document.getElementById("worker")?.textContent ?? ""], { type: "text/javascript" });
const elk = new ELK({ workerFactory: () => new Worker(URL.createObjectURL(source)) });

export function shortened(text: string): string {
  return text.length > MOST_CHARACTERS ? `${text.slice(0, MOST_CHARACTERS - 1)}…` : text;
}

function width(box: Box): number {
  const sign = box.kind === "module" ? SIGN : 0;
  return Math.max(shortened(box.title).length * TITLE, shortened(box.note).length * NOTE, 40) + PADDING + sign;
}

function elkNode(box: Box, children: Map<string | null, Box[]>): ElkNode {
  const inside = children.get(box.id) ?? [];
  if (box.kind !== "open") return { id: box.id, width: width(box), height: box.note ? 42 : 28 };
  return {
    id: box.id,
    children: inside.map((one) => elkNode(one, children)),
    layoutOptions: {
      ...SPACING,
      "elk.layered.mergeEdges": "true",
      "elk.padding": "[top=38,left=14,bottom=14,right=14]",
      "elk.nodeSize.constraints": "MINIMUM_SIZE",
      "elk.nodeSize.minimum": `(60, ${width(box) + 30})`, // height and width: ELK turns the axes for this direction
    },
  };
}

function placed(node: ElkNode, found: Map<string, Placed>): void {
  for (const child of node.children ?? []) {
    found.set(child.id, { x: child.x ?? 0, y: child.y ?? 0, width: child.width ?? 0, height: child.height ?? 0 });
    placed(child, found);
  }
}

function edgesOf(node: ElkNode): ElkExtendedEdge[] {
  return [...(node.edges ?? []), ...(node.children ?? []).flatMap(edgesOf)];
}

export async function layout(visible: Visible): Promise<Layout> {
  const children = new Map<string | null, Box[]>();
  for (const box of visible.boxes) children.set(box.parent, [...(children.get(box.parent) ?? []), box]);
  const root: ElkNode = {
    id: "root",
    layoutOptions: OPTIONS,
    children: (children.get(null) ?? []).map((box) => elkNode(box, children)),
    edges: visible.edges.map(([from, to], at) => ({ id: `e${at}`, sources: [from], targets: [to] })),
  };
  const result: ElkNode = await elk.layout(root);
  const boxes = new Map<string, Placed>();
  placed(result, boxes);
  const edges = edgesOf(result).flatMap((edge) =>
    (edge.sections ?? []).map((section) => ({
      from: edge.sources[0] ?? "",
      to: edge.targets[0] ?? "",
      points: [section.startPoint, ...(section.bendPoints ?? []), section.endPoint],
    })),
  );
  return { x: 0, y: 0, width: result.width ?? 0, height: result.height ?? 0, boxes, edges };
}
