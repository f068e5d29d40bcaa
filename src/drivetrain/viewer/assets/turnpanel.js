// The selected turn: what it is, why it forked, its messages beside its tokens.

import { badge, button, el, facts, replace } from "./dom.js";
import { forkBox } from "./forkbox.js";
import { MessagePane } from "./messagepane.js";
import { many } from "./numbers.js";
import { phaseBars, phasesOf, phaseWords } from "./phases.js";
import { TokenPane } from "./tokenpane.js";
import { visibleNodes, visibleParagraphs } from "./visible.js";

export class TurnPanel {
  constructor(app) {
    this.app = app;
    this.head = el("div", { class: "turn-about" });
    this.messages = new MessagePane(app);
    this.tokens = new TokenPane(app);
    this.heat = this.option("heat", "Log-prob heat", "h");
    this.whole = this.option("whole", "Whole prompt", "w");
    this.node = el(
      "div", { class: "turn-panel" },
      this.head,
      el("div", { class: "options" }, this.heat, this.whole, this.legend()),
      el("div", { class: "panes" }, this.messages.node, this.tokens.node),
    );
    app.listen((changed) => {
      if (changed === "turn") this.show();
      if (changed === "view") this.switches();
    });
  }

  start() {
    this.show();
    this.messages.show();
    this.tokens.show();
    this.switches();
  }

  option(name, label, key) {
    return button(label, () => this.app.toggle(name), { "aria-pressed": "false", class: "switch", id: `option-${name}`, title: key });
  }

  switches() {
    this.heat.setAttribute("aria-pressed", String(this.app.heat));
    this.whole.setAttribute("aria-pressed", String(this.app.whole));
    this.node.classList.toggle("with-heat", this.app.heat);
  }

  legend() {
    const key = (kind, words) => el("span", { class: "key" }, el("span", { class: `token ${kind}` }, words));
    const heat = [0, 2, 4, 6].map((level) => el("span", { class: `token heat-${level}` }, ["p > 0.95", "p > 0.5", "p > 0.05", "rarer"][level / 2]));
    return el(
      "p", { class: "legend" },
      key("trained", "trained"), key("masked", "masked"), key("context", "context"), key("earlier", "sampled earlier"),
      el("span", { class: "key heat-key" }, heat),
    );
  }

  show() {
    const { turn, trace } = this.app;
    if (!turn) return replace(this.head, el("p", {}, "This rollout made no model call."));
    replace(
      this.head,
      el(
        "h2", { id: "turn-title", tabindex: -1 }, `Turn ${turn.id}`, " ",
        badge(turn.label, `label-${turn.label}`, turn.label_reason), " ",
        badge(turn.link.replaceAll("_", " "), "link-kind"), " ",
        turn.finish_reason ? badge(turn.finish_reason.replaceAll("_", " "), "") : null, " ",
        turn.delivered ? null : badge("undelivered", "bad"),
      ),
      forkBox(this.app, turn),
      this.time(turn),
      this.facts(turn, trace),
    );
  }

  time(turn) {
    const phases = phasesOf(turn);
    if (!phases.length) return null;
    return el("div", { class: "turn-time" }, phaseBars(turn, phases[0].start, phases.at(-1).end), el("span", { class: "quiet" }, phaseWords(turn)));
  }

  facts(turn, trace) {
    const [dispatched, first, last] = turn.policy_versions;
    const rows = [...new Set(turn.trained.map(([, , row]) => row))];
    const goto = (id) => (id === null ? "" : button(`turn ${id}`, () => this.app.selectId(id), { class: "link" }));
    const tools = turn.toolset === null ? [] : trace.data.toolsets[turn.toolset];
    return el(
      "details", { class: "turn-facts" },
      el("summary", {}, this.summary(turn, rows)),
      facts([
        ["label", turn.label_reason],
        ["parent", goto(turn.parent)],
        ["started by a call of", goto(turn.parent_call)],
        ["continues the conversation of", goto(turn.continues)],
        ["policy version", first === last ? first : `${first} to ${last}`],
        ["version when dispatched", dispatched === first ? "" : dispatched],
        ["versions by token", turn.policy_spans.map(([size, version]) => `${size} x ${version}`).join(", ")],
        ["engine", turn.engine],
        ["dialect", turn.dialect],
        ["asked for", JSON.stringify(turn.requested) === "{}" ? "" : JSON.stringify(turn.requested)],
        ["sampled with", JSON.stringify(turn.effective) === "{}" ? "" : JSON.stringify(turn.effective)],
        ["notes", turn.notes.join(", ")],
        ["replies that came back rewritten", turn.soft_mismatches || ""],
        ["headers", namedTexts(turn.origin)],
        ["tools", tools.length ? toolList(tools) : ""],
      ]),
    );
  }

  summary(turn, rows) {
    const fate = rows.length ? `trained in row ${rows.join(", ")}` : `not trained: ${turn.masked || "nothing was sampled"}`;
    return `${many(turn.sampled.length, "token")} sampled, ${fate}`;
  }
}

function namedTexts(named) {
  return Object.entries(named).map(([name, value]) => `${name}: ${value}`).join(", ");
}

function toolList(tools) {
  return el(
    "div", {},
    tools.map((tool) => el(
      "details", {}, el("summary", {}, visibleNodes(tool.name)),
      el("pre", { class: "plain" }, visibleParagraphs(tool.description)), el("pre", { class: "plain" }, visibleParagraphs(JSON.stringify(tool.parameters, null, 2))),
    )),
  );
}
