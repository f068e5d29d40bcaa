// Panels, one at a time; each is made when it is first shown.

import { el } from "./dom.js";

export class Tabs {
  // `panels`: [{ name, label, make }]; `make` returns the nodes of a panel.
  constructor(app, panels) {
    this.app = app;
    this.panels = panels;
    this.tabs = panels.map(({ name, label }) =>
      el("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => app.show(name) }, label));
    this.list = el("div", { class: "tabs", role: "tablist", "aria-label": "Views", onkeydown: (event) => this.key(event) }, this.tabs);
    this.bodies = panels.map(({ name }) =>
      el("div", { class: `panel panel-${name}`, role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}`, hidden: true }));
    app.listen((changed) => changed === "tab" && this.show());
  }

  show() {
    this.panels.forEach(({ name, make }, index) => {
      const shown = name === this.app.tab;
      this.tabs[index].setAttribute("aria-selected", String(shown));
      this.tabs[index].tabIndex = shown ? 0 : -1;
      this.bodies[index].hidden = !shown;
      if (shown && !this.bodies[index].childNodes.length) this.bodies[index].append(...[make()].flat());
    });
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = this.panels.findIndex(({ name }) => name === this.app.tab);
    const next = (at + by + this.panels.length) % this.panels.length;
    this.app.show(this.panels[next].name);
    this.tabs[next].focus();
  }
}
