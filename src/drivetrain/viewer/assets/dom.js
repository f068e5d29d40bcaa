// Elements are made here and nowhere else. Recorded text becomes text nodes; no markup is ever parsed.

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !key.startsWith("aria-"))) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true && !key.startsWith("aria-") ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

export function button(label, action, attributes = {}) {
  return el("button", { type: "button", onclick: action, ...attributes }, label);
}

export function badge(text, kind = "", title = null) {
  return el("span", { class: `badge ${kind}`, title }, text);
}

// Name and value pairs; pairs without a value are left out.
export function facts(pairs) {
  const list = el("dl", { class: "facts" });
  for (const [name, value] of pairs) {
    if (value === "" || value === null || value === undefined) continue;
    list.append(el("div", {}, el("dt", {}, name), el("dd", {}, value instanceof Node ? value : String(value))));
  }
  return list;
}

export function table(caption, head, rows) {
  const cells = (tag, values) => values.map((value) => el(tag, tag === "th" ? { scope: "col" } : {}, value));
  return el(
    "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {},
      el("caption", { class: "quiet" }, caption),
      el("thead", {}, el("tr", {}, cells("th", head))),
      el("tbody", {}, rows.map((row) => el("tr", {}, cells("td", row)))),
    ),
  );
}
