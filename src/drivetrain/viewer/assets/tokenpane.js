// The tokens of the selected turn: what each is for, its log-prob, and its id to copy.

import { copyText, idList } from "./copy.js";
import { button, el, replace } from "./dom.js";
import { lineOf, shapes, tokenLines } from "./layout.js";
import { count, many } from "./numbers.js";
import { heatOf, kindInWords, kindOf, logprobAt } from "./tokenkind.js";
import { fittingColumns, VirtualLines } from "./virtual.js";
import { visibleNodes } from "./visible.js";

const TOKEN_LINE = 24;

export class TokenPane {
  constructor(app) {
    this.app = app;
    this.shapes = shapes(app.trace);
    this.sequence = null;
    this.from = this.to = null; // selected tokens, both ends included
    this.title = el("h3", { id: "tokens-title" }, "Tokens");
    this.box = el("div", { class: "token-box", id: "tokens", tabindex: 0, role: "region", "aria-labelledby": "tokens-title" });
    this.lines = new VirtualLines(this.box, TOKEN_LINE, (index) => this.line(index));
    this.about = el("output", { class: "about-token", "aria-live": "polite" });
    this.box.addEventListener("click", (event) => this.click(event));
    this.box.addEventListener("keydown", (event) => this.key(event));
    this.node = el(
      "section", { class: "pane", "aria-labelledby": "tokens-title" },
      el(
        "div", { class: "pane-head" }, this.title,
        el(
          "span", { class: "tools" },
          button("To the sampled", () => this.toSampled(), { id: "to-sampled", title: "s" }),
          button("Copy ids", () => this.copy(), { id: "copy-ids", title: "c" }),
        ),
      ),
      this.box,
      this.about,
    );
    new ResizeObserver(() => this.resized()).observe(this.box);
    app.listen((changed) => this.changed(changed));
  }

  changed(changed) {
    if (changed === "turn" || changed === "view") this.show();
    if (changed === "hit") this.app.hit.area === "tokens" ? this.showHit(this.app.hit) : this.lines.draw();
  }

  show() {
    const { turn, trace, whole } = this.app;
    if (!turn) return;
    this.sequence = trace.sequence(turn, whole);
    this.from = this.to = null;
    const before = this.sequence.first;
    this.title.textContent = whole
      ? `Tokens: whole prompt of ${count(turn.prompt_len)}, ${count(turn.sampled.length)} sampled`
      : `Tokens: ${count(turn.delta.length)} added, ${count(turn.sampled.length)} sampled` +
        (before ? ` (behind ${count(before)} of turn ${turn.source})` : "");
    this.layOut();
    this.box.scrollTop = 0;
    this.describe();
  }

  layOut() {
    this.width = fittingColumns(this.box);
    this.starts = tokenLines(this.sequence, this.shapes, this.width);
    this.lines.setCount(this.starts.length);
  }

  resized() {
    if (this.sequence && this.box.clientWidth && fittingColumns(this.box) !== this.width) this.layOut();
  }

  line(index) {
    const end = index + 1 < this.starts.length ? this.starts[index + 1] : this.sequence.length;
    const line = el("div", { class: "token-line" });
    for (let at = this.starts[index]; at < end; at++) line.append(this.token(at));
    return line;
  }

  token(at) {
    const token = this.sequence.tokens[at];
    const place = this.sequence.at(at);
    const state = kindOf(this.app.trace, this.app.turn, place);
    const classes = ["token", state.kind];
    const heat = this.app.heat ? heatOf(logprobAt(place)) : null;
    if (heat !== null) classes.push(`heat-${heat}`);
    if (this.app.trace.special.has(token)) classes.push("special");
    if (this.chosen(at)) classes.push("chosen");
    const hit = this.app.hit;
    if (hit?.area === "tokens" && place.turn === hit.turn && this.inHit(at, hit)) classes.push("hit");
    return el("span", { class: classes.join(" "), "data-at": at }, visibleNodes(this.app.trace.text(token)));
  }

  chosen(at) {
    return this.from !== null && at >= Math.min(this.from, this.to) && at <= Math.max(this.from, this.to);
  }

  inHit(at, hit) {
    const own = at + this.sequence.first - hit.turn.keep;
    return own >= hit.start && own < hit.stop;
  }

  click(event) {
    const token = event.target.closest("[data-at]");
    if (!token) return;
    const at = Number(token.dataset.at);
    this.choose(event.shiftKey && this.from !== null ? this.from : at, at);
  }

  key(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey || !this.sequence.length) return;
    event.preventDefault();
    const at = this.to === null ? (by > 0 ? 0 : this.sequence.length - 1) : this.to + by;
    const to = Math.min(this.sequence.length - 1, Math.max(0, at));
    this.choose(event.shiftKey && this.from !== null ? this.from : to, to);
    this.lines.reveal(lineOf(this.starts, to));
  }

  choose(from, to) {
    this.from = from;
    this.to = to;
    this.lines.draw();
    this.describe();
  }

  clear() {
    if (this.from !== null) this.choose(null, null);
  }

  describe() {
    if (this.from === null) return replace(this.about, "Select a token to see its id, its log-prob and what it is for.");
    if (this.from !== this.to) {
      const size = Math.abs(this.to - this.from) + 1;
      const low = Math.min(this.from, this.to) + this.sequence.first;
      return replace(this.about, `${many(size, "token")} selected, ${count(low)} to ${count(low + size - 1)}. c copies their ids.`);
    }
    const token = this.sequence.tokens[this.to];
    const place = this.sequence.at(this.to);
    const logprob = logprobAt(place);
    const state = kindOf(this.app.trace, this.app.turn, place);
    const total = this.app.turn.prompt_len + this.app.turn.sampled.length;
    replace(
      this.about,
      el("code", {}, visibleNodes(this.app.trace.text(token))),
      ` id ${this.app.trace.tokens.ids[token]}, token ${count(this.to + this.sequence.first)} of ${count(total)}; `,
      `${kindInWords(this.app.turn, place, state)}`,
      logprob === undefined || logprob === null ? "" : `; log-prob ${logprob.toFixed(4)} (p ${Math.exp(logprob).toPrecision(3)})`,
    );
  }

  // Select the first token that the turn sampled.
  toSampled() {
    if (!this.app.turn?.sampled.length) return;
    const at = this.sequence.length - this.app.turn.sampled.length;
    this.choose(at, at);
    this.lines.reveal(lineOf(this.starts, at));
  }

  showHit(hit) {
    const at = hit.start + hit.turn.keep - this.sequence.first;
    this.lines.reveal(lineOf(this.starts, at));
  }

  // Ids of the selected tokens, else of all that are shown.
  async copy() {
    if (!this.sequence) return;
    const from = this.from === null ? 0 : Math.min(this.from, this.to);
    const to = this.from === null ? this.sequence.length : Math.max(this.from, this.to) + 1;
    await copyText(idList(this.app.trace.ids(this.sequence, from, to)));
    this.app.status(`${many(to - from, "token id")} copied`);
  }
}
