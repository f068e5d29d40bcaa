// A long text with one class per line: a patch, a log.

import { el } from "./dom.js";
import { VirtualLines } from "./virtual.js";
import { visibleNodes } from "./visible.js";

const TEXT_LINE = 20;

export function lineView(text, label, kindOfLine = () => "") {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const box = el("div", { class: "line-view", tabindex: 0, role: "region", "aria-label": label });
  const view = new VirtualLines(box, TEXT_LINE, (index) =>
    el("div", { class: `text-line ${kindOfLine(lines[index], index)}` }, visibleNodes(lines[index])));
  box.style.height = `min(60vh, ${lines.length * TEXT_LINE + 20}px)`; // with room for a scroll bar
  requestAnimationFrame(() => view.setCount(lines.length));
  return box;
}
