// The turns of the rollout: a list that is also the graph of chains and forks.

import { badge, el, svg } from "./dom.js";
import { assignLanes, MOST_LANES } from "./lanes.js";
import { count } from "./numbers.js";
import { VirtualLines } from "./virtual.js";

const LINE = 46;
const LANE = 11;

export class TurnList {
  constructor(app) {
    this.app = app;
    this.lanes = assignLanes(app.trace);
    this.width = LANE * (1 + Math.min(MOST_LANES, Math.max(1, ...this.lanes.map((lane) => lane.lane + 1))));
    this.box = el("div", { class: "turn-list", id: "turn-list", tabindex: 0, role: "listbox", "aria-label": "Turns" });
    this.lines = new VirtualLines(this.box, LINE, (index) => this.line(index), { role: "presentation" });
    this.lines.sizer.setAttribute("role", "presentation");
    this.box.addEventListener("click", (event) => {
      const line = event.target.closest("[data-turn]");
      if (line) app.selectId(Number(line.dataset.turn));
    });
    this.box.addEventListener("keydown", (event) => this.key(event));
    app.listen((changed) => changed === "turn" && this.follow());
  }

  start() {
    this.lines.setCount(this.app.trace.turns.length);
    this.follow();
  }

  follow() {
    const turn = this.app.turn;
    if (!turn) return;
    this.lines.reveal(this.app.trace.place.get(turn.id));
    this.box.setAttribute("aria-activedescendant", `turn-${turn.id}`);
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.app.step(by);
  }

  line(index) {
    const turn = this.app.trace.turns[index];
    const selected = turn === this.app.turn;
    const trained = turn.trained.length ? "trained" : turn.masked ? "masked" : "";
    return el(
      "div",
      {
        class: `turn-line${selected ? " selected" : ""}`, role: "option", id: `turn-${turn.id}`, "data-turn": turn.id,
        "aria-selected": selected, "aria-setsize": this.app.trace.turns.length, "aria-posinset": index + 1,
      },
      this.graph(index),
      el(
        "div", { class: "turn-text" },
        el(
          "div", { class: "turn-head" },
          el("strong", {}, `Turn ${turn.id}`),
          turn.label === "agent" ? null : badge(turn.label, `label-${turn.label}`),
          turn.fork_reason ? badge(turn.fork_reason.replaceAll("_", " "), "fork") : null,
          turn.delivered ? null : badge("undelivered", "bad"),
        ),
        el(
          "div", { class: "turn-numbers quiet" },
          `${count(turn.prompt_len)} in, `,
          el("span", { class: `swatch ${trained}` }, `${count(turn.sampled.length)} sampled`),
          turn.finish_reason && turn.finish_reason !== "stop" ? `, ${turn.finish_reason.replaceAll("_", " ")}` : "",
        ),
      ),
    );
  }

  graph(index) {
    const { lane, from, forkFrom, passing, ends } = this.lanes[index];
    const middle = LINE / 2;
    const node = svg("svg", { class: "lanes", width: this.width, height: LINE, "aria-hidden": "true" });
    for (const at of passing) node.append(this.path(`M${x(at)} 0V${LINE}`, "edge"));
    if (from !== null) node.append(this.path(curve(from, lane, middle), "edge"));
    if (forkFrom !== null) node.append(this.path(curve(forkFrom, lane, middle), "edge forked"));
    if (!ends) node.append(this.path(`M${x(lane)} ${middle}V${LINE}`, "edge"));
    const turn = this.app.trace.turns[index];
    const kind = turn.fork_reason ? "node forked" : "node";
    node.append(svg("circle", { cx: x(lane), cy: middle, r: turn === this.app.turn ? 5.5 : 4, class: kind }));
    return node;
  }

  path(d, kind) {
    return svg("path", { d, class: kind, fill: "none" });
  }
}

function x(lane) {
  return LANE * (1 + Math.min(lane, MOST_LANES - 1));
}

function curve(from, to, middle) {
  return from === to ? `M${x(to)} 0V${middle}` : `M${x(from)} 0C${x(from)} ${middle} ${x(to)} 0 ${x(to)} ${middle}`;
}
