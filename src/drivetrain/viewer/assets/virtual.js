// Long lists: only the lines in sight (and a few more) are in the page. Every line has the same height.

import { el } from "./dom.js";

const MORE = 8;

export class VirtualLines {
  // `box` scrolls; `render(index)` makes the element of one line.
  constructor(box, lineHeight, render, attributes = {}) {
    this.box = box;
    this.lineHeight = lineHeight;
    this.render = render;
    this.count = 0;
    this.waiting = false;
    this.lines = el("div", { class: "lines", ...attributes });
    this.sizer = el("div", { class: "sizer" }, this.lines);
    box.replaceChildren(this.sizer);
    box.addEventListener("scroll", () => this.soon(), { passive: true });
    new ResizeObserver(() => this.soon()).observe(box);
  }

  setCount(count) {
    this.count = count;
    this.sizer.style.height = `${count * this.lineHeight}px`;
    this.draw();
  }

  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const top = this.box.scrollTop;
    const first = Math.max(0, Math.floor(top / this.lineHeight) - MORE);
    const last = Math.min(this.count, Math.ceil((top + this.box.clientHeight) / this.lineHeight) + MORE);
    const lines = [];
    for (let index = first; index < last; index++) lines.push(this.render(index));
    this.lines.style.transform = `translateY(${first * this.lineHeight}px)`;
    this.lines.replaceChildren(...lines);
  }

  // Bring a line into sight; into the middle if it is not.
  reveal(index) {
    const top = index * this.lineHeight;
    const seen = this.box.clientHeight;
    if (top < this.box.scrollTop || top + this.lineHeight > this.box.scrollTop + seen) {
      this.box.scrollTop = Math.max(0, top - seen / 2);
    }
    this.draw();
  }
}

// Columns of the pane's font that fit beside each other.
export function fittingColumns(box) {
  const probe = el("span", { class: "probe" }, "0".repeat(100));
  box.append(probe);
  const width = probe.getBoundingClientRect().width / 100;
  probe.remove();
  return Math.max(20, Math.floor((box.clientWidth - 24) / (width || 8)));
}
