// Elements without HTML: text from a bundle is only ever a text node or the value of an attribute.

type Child = Node | string | null | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: Event) => void)>;

function fill(element: Element, attributes: Attributes, children: Child[]): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
}

export function h<Tag extends keyof HTMLElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[Tag] {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

export function s<Tag extends keyof SVGElementTagNameMap>(
  tag: Tag,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[Tag] {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, attributes, children);
  return element;
}

export interface Column {
  title: string;
  number?: boolean;
}

/** A table that scrolls sideways by itself where it is wider than the page. */
export function table(caption: string, columns: Column[], rows: Child[][], footnote?: string): HTMLElement {
  const cell = (child: Child, at: number) =>
    at === 0
      ? h("th", { scope: "row" }, child)
      : h("td", { class: columns[at]?.number ? "number" : undefined }, child);
  return h(
    "figure",
    { class: "table" },
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
      h(
        "table",
        {},
        h("caption", { class: "unseen" }, caption),
        h("thead", {}, h("tr", {}, ...columns.map((one) => h("th", { scope: "col", class: one.number ? "number" : undefined }, one.title)))),
        h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map(cell)))),
      ),
    ),
    footnote ? h("figcaption", {}, footnote) : null,
  );
}

export function section(id: string, title: string, lead: string, ...children: Child[]): HTMLElement {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), prose("lead", lead), ...children);
}

/** A paragraph in which text between backquotes is code. */
export function prose(style: string, text: string): HTMLElement {
  return h("p", { class: style }, ...text.split("`").map((part, at) => (at % 2 ? code(part) : part)));
}

export function code(text: string): HTMLElement {
  return h("code", {}, text);
}
