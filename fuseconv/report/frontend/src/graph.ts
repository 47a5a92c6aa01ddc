// The section with the graphs: which bundle and form is shown, what is open, what is selected.

import { type Bundle, type Graph, ops } from "./data";
import { type Form, matchDetail, MatchIndex, nodeDetail } from "./detail";
import { h, prose, section } from "./dom";
import { draw, focusBox, legend, type Look } from "./draw";
import { plural, titleOf } from "./format";
import { layout, type Layout } from "./layout";
import { type Box, Modules, type Visible } from "./visible";

const STAGES = ["canonical", "structure", "search", "fuse"];
const MOST_BOXES = 80;
const ZOOM = [0.25, 0.35, 0.5, 0.7, 0.85, 1, 1.25, 1.6, 2];

interface Shown {
  bundle: Bundle;
  index: MatchIndex;
  form: Form;
  graph: Graph;
  modules: Modules;
  title: string;
}

export class GraphView {
  readonly element: HTMLElement;
  private readonly views: Shown[];
  private readonly open: Map<Bundle, Set<string>>;
  private readonly canvas = h("div", { class: "canvas", role: "group", "aria-label": "Drawing", tabindex: 0 });
  private readonly aside = h("aside", { class: "detail", "aria-live": "polite", "aria-label": "Selected op", tabindex: 0 });
  private readonly status = h("p", { class: "status", role: "status" });
  private readonly tabs: HTMLButtonElement[];
  private at = 0;
  private match: number | null = null;
  private node: number | null = null;
  private zoom = ZOOM.indexOf(1);
  private drawn: { visible: Visible; layout: Layout; svg: SVGSVGElement } | null = null;
  private turn = 0;

  constructor(bundles: Bundle[]) {
    this.views = bundles.flatMap((bundle) => {
      const index = new MatchIndex(bundle);
      return (["captured", "fused"] as const).flatMap((form): Shown[] => {
        const graph = bundle[form];
        const prefix = bundles.length > 1 ? `${titleOf(bundle, bundles)}: ` : "";
        return graph ? [{ bundle, index, form, graph, modules: new Modules(graph), title: `${prefix}${form}` }] : [];
      });
    });
    this.open = new Map(bundles.map((bundle) => [bundle, new Set<string>()]));
    for (const view of this.views) {
      const open = this.open.get(view.bundle);
      if (open?.size === 0) for (const path of view.modules.opening(MOST_BOXES)) open.add(path);
    }
    this.tabs = this.views.map((view, at) =>
      h("button", { type: "button", "aria-pressed": "false", onclick: () => this.show(at) }, view.title, h("small", {}, ` ${plural(ops(view.graph), "op")}`)),
    );
    this.element = this.sectioned(bundles);
  }

  start(): void {
    if (this.views.length) void this.redraw();
  }

  /** Shows a match of a bundle in the graph before it was replaced. */
  showMatch(bundle: Bundle, match: number): void {
    const at = this.views.findIndex((view) => view.bundle === bundle && view.form === "captured");
    const view = this.views[at];
    if (!view) return;
    this.at = at;
    this.node = null;
    this.match = match;
    this.reveal(view.index.nodes("captured", match)[0]);
  }

  /** Whether the captured graph of a bundle has a node: those that matches made are not in it. */
  has(bundle: Bundle, name: string): boolean {
    return this.views.some((view) => view.bundle === bundle && view.form === "captured" && view.index.captured.has(name));
  }

  /** Shows a node of the captured graph. */
  showNode(bundle: Bundle, name: string): void {
    const at = this.views.findIndex((view) => view.bundle === bundle && view.form === "captured");
    const node = this.views[at]?.index.captured.get(name);
    if (node === undefined) return;
    this.at = at;
    this.match = null;
    this.node = node;
    this.reveal(node);
  }

  private reveal(node: number | undefined): void {
    const view = this.views[this.at];
    const found = node === undefined ? undefined : view?.graph.nodes[node];
    if (view && found) for (const module of view.modules.boxed(found)) this.open.get(view.bundle)?.add(view.modules.path(module));
    this.element.scrollIntoView({ block: "start" });
    void this.redraw(node === undefined ? undefined : `n${node}`);
  }

  private sectioned(bundles: Bundle[]): HTMLElement {
    const lead = "The model as it was captured, and as its rules leave it. Open a module to see its ops; select an op to see what replaced it.";
    if (this.views.length === 0) {
      const why = "The bundle has neither the captured program nor the target export. Convert the model again with this version of fuseconv.";
      return section("graph", "Graph", lead, h("p", { class: "absent" }, why));
    }
    const button = (label: string, text: string, press: () => void) => h("button", { type: "button", "aria-label": label, title: label, onclick: press }, text);
    const stages = STAGES.filter((stage) => bundles.some((bundle) => bundle.matches.some((match) => match.stage === stage)));
    const drawn = bundles.map((bundle) => {
      if (bundle.drawn_of === null) return null;
      const which = bundles.length > 1 ? titleOf(bundle, bundles) : "The bundle";
      return prose("absent", `${which} does not contain the target export, so the fused graph is drawn from the plan, as it is for the target ${bundle.drawn_of}. The type of a value inside a replacement is not known: it is shown as ?.`);
    });
    return section(
      "graph",
      "Graph",
      lead,
      ...drawn,
      h(
        "div",
        { class: "toolbar" },
        h("div", { class: "switch", role: "group", "aria-label": "Which graph" }, ...this.tabs),
        h(
          "div",
          { class: "tools", role: "group", "aria-label": "View" },
          button("Open all modules", "Open all", () => this.setOpen((view) => view.modules.every())),
          button("Close all modules", "Close all", () => this.setOpen(() => new Set())),
          button("− smaller", "−", () => this.rescale(this.zoom - 1)),
          button("+ larger", "+", () => this.rescale(this.zoom + 1)),
          button("Fit the width", "Fit", () => this.fit()),
        ),
      ),
      h("div", { class: "workbench" }, this.canvas, this.aside),
      h("div", { class: "below" }, legend(stages), this.status),
    );
  }

  private setOpen(choose: (view: Shown) => Set<string>): void {
    const view = this.views[this.at];
    if (!view) return;
    this.open.set(view.bundle, choose(view));
    void this.redraw();
  }

  private show(at: number): void {
    const same = this.views[at]?.bundle === this.views[this.at]?.bundle;
    if (!same) this.match = null;
    this.at = at;
    this.node = null;
    const view = this.views[at];
    const first = view && this.match !== null ? view.index.nodes(view.form, this.match)[0] : undefined;
    void this.redraw(first === undefined ? undefined : `n${first}`);
  }

  private look(view: Shown): Look {
    const selected = new Set(this.match === null ? [] : view.index.nodes(view.form, this.match));
    if (this.node !== null) selected.add(this.node);
    const matches = (box: Box) => box.nodes.flatMap((node) => view.index.of(view.form, view.graph, node));
    return {
      stage: (box) => {
        if (box.node === null) return "";
        const found = matches(box).map((one) => view.bundle.matches[one]);
        return STAGES.findLast((stage) => found.some((match) => match?.applied && match.stage === stage)) ?? "";
      },
      note: (box) => {
        if (box.kind !== "module") return box.note;
        const fused = matches(box).filter((one) => view.bundle.matches[one]?.applied && view.bundle.matches[one]?.stage === "fuse");
        const count = new Set(fused).size;
        return count ? `${box.note}, ${count} fused` : box.note;
      },
      selected: (box) => box.kind !== "open" && box.nodes.some((node) => selected.has(node)),
      current: () => false,
      press: (box) => this.press(view, box),
    };
  }

  private press(view: Shown, box: Box): void {
    if (box.path !== null) {
      const open = this.open.get(view.bundle) ?? new Set();
      if (!open.delete(box.path)) open.add(box.path);
    } else if (box.node !== null) {
      this.node = box.node;
      this.match = view.index.of(view.form, view.graph, box.node).at(-1) ?? null;
    }
    void this.redraw(box.id, true);
  }

  /** Places and draws the graph. A redraw that another one has overtaken is dropped. */
  private async redraw(focus?: string, keep = false): Promise<void> {
    const view = this.views[this.at];
    if (!view) return;
    this.turn += 1;
    const turn = this.turn;
    this.tabs.forEach((tab, at) => tab.setAttribute("aria-pressed", String(at === this.at)));
    this.describe(view);
    const visible = view.modules.visible(this.open.get(view.bundle) ?? new Set());
    this.status.textContent = `Placing ${plural(visible.boxes.length, "box", "boxes")} …`;
    const placed = await layout(visible).catch((error: unknown) => {
      this.status.textContent = `The graph cannot be placed: ${String(error)}`;
      throw error;
    });
    if (turn !== this.turn) return;
    const before = this.drawn && keep && focus ? this.drawn.layout.boxes.get(focus) : undefined;
    const { scrollLeft, scrollTop } = this.canvas;
    const svg = draw(visible, placed, this.look(view), `${view.title} graph`);
    this.drawn = { visible, layout: placed, svg };
    this.canvas.replaceChildren(svg);
    this.rescale(this.zoom);
    const undrawn = visible.undrawn ? ` Not drawn: ${plural(visible.undrawn, "op")} without a tensor as result.` : "";
    this.status.textContent = `${plural(visible.boxes.length, "box", "boxes")}. Arrow keys move, Enter opens or selects.${undrawn}`;
    const first = visible.boxes[0]?.id;
    focusBox(svg, focus ?? first ?? "", focus !== undefined && keep);
    const after = focus === undefined ? undefined : placed.boxes.get(focus);
    if (before && after) {
      const scale = ZOOM[this.zoom] ?? 1;
      this.canvas.scrollTo(scrollLeft + (after.x - before.x) * scale, scrollTop + (after.y - before.y) * scale);
    } else if (after) this.center(after);
    else this.begin(placed, visible);
  }

  /** Shows the top of the graph, where its inputs are. */
  private begin(placed: Layout, visible: Visible): void {
    const scale = ZOOM[this.zoom] ?? 1;
    const first = visible.boxes.find((box) => box.kind === "input") ?? visible.boxes[0];
    const at = first && placed.boxes.get(first.id);
    if (at) this.canvas.scrollTo((at.x + at.width / 2) * scale - this.canvas.clientWidth / 2, 0);
  }

  private center(box: { x: number; y: number; width: number; height: number }): void {
    const scale = ZOOM[this.zoom] ?? 1;
    this.canvas.scrollTo(
      (box.x + box.width / 2) * scale - this.canvas.clientWidth / 2,
      (box.y + box.height / 2) * scale - this.canvas.clientHeight / 2,
    );
  }

  private describe(view: Shown): void {
    const node = this.node === null ? undefined : view.graph.nodes[this.node];
    const match = this.match === null ? undefined : view.bundle.matches[this.match];
    if (node) this.aside.replaceChildren(nodeDetail(node, view.graph, view.form, view.bundle, view.index));
    else if (match) this.aside.replaceChildren(matchDetail(match, view.bundle, view.index));
    else this.aside.replaceChildren(h("p", { class: "hint" }, "Select an op to see its values, its source line, and the rule that replaced it."));
    this.aside.scrollTop = 0;
  }

  private rescale(at: number): void {
    this.zoom = Math.max(0, Math.min(ZOOM.length - 1, at));
    const scale = ZOOM[this.zoom] ?? 1;
    if (!this.drawn) return;
    this.drawn.svg.setAttribute("width", String(Math.ceil(this.drawn.layout.width * scale)));
    this.drawn.svg.setAttribute("height", String(Math.ceil(this.drawn.layout.height * scale)));
  }

  private fit(): void {
    if (!this.drawn) return;
    const share = this.canvas.clientWidth / this.drawn.layout.width;
    const fitting = ZOOM.filter((one) => one <= share).length - 1;
    this.rescale(Math.max(fitting, 0));
  }
}
