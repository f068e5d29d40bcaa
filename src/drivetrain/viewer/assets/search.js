// Full-text search over messages and tokens.

import { button, el } from "./dom.js";
import { ownBlocks } from "./messagepane.js";
import { count } from "./numbers.js";

const MOST_HITS = 10_000;
const WAIT_MS = 150;

// Every place of `query`, any case, turn by turn: { turn, area, block, start, stop }; tokens count in the turn's own.
export function findAll(trace, index, query) {
  const hits = [];
  if (!query) return hits;
  const pattern = new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "giu");
  for (const turn of trace.turns) {
    if (hits.length >= MOST_HITS) break;
    const { texts, tokens } = index.of(turn);
    texts.forEach((text, block) => {
      for (const match of text.matchAll(pattern)) {
        hits.push({ turn, area: "messages", block, start: match.index, stop: match.index + match[0].length });
      }
    });
    for (const match of tokens.text.matchAll(pattern)) {
      const start = firstTokenAt(tokens.starts, match.index);
      const stop = tokenAt(tokens.starts, match.index + match[0].length - 1) + 1;
      hits.push({ turn, area: "tokens", start, stop });
    }
  }
  return hits.slice(0, MOST_HITS);
}

// The last token that begins at or before a place in the text.
export function tokenAt(starts, place) {
  let low = 0;
  let high = starts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

// Tokens that are one character together all begin where it begins.
function firstTokenAt(starts, place) {
  let at = tokenAt(starts, place);
  while (at > 0 && starts[at - 1] === starts[at]) at -= 1;
  return at;
}

// The texts of turns, put together when they are first searched.
export class SearchIndex {
  constructor(trace) {
    this.trace = trace;
    this.texts = new Map();
  }

  of(turn) {
    let found = this.texts.get(turn.id);
    if (!found) {
      found = { texts: ownBlocks(turn).map((block) => block.text), tokens: this.trace.joined(this.trace.sequence(turn, false)) };
      this.texts.set(turn.id, found);
    }
    return found;
  }
}

export class SearchBox {
  constructor(app) {
    this.app = app;
    this.index = new SearchIndex(app.trace);
    this.hits = [];
    this.at = -1;
    this.input = el("input", {
      type: "search", id: "search", placeholder: "Search messages and tokens", "aria-label": "Search messages and tokens",
      autocomplete: "off", spellcheck: "false", oninput: () => this.later(), onkeydown: (event) => this.key(event),
    });
    this.said = el("output", { id: "search-said", class: "quiet", for: "search", "aria-live": "polite" });
    this.node = el(
      "search", { class: "search" }, this.input,
      button("Previous", () => this.step(-1), { id: "search-previous", title: "N" }),
      button("Next", () => this.step(1), { id: "search-next", title: "n" }),
      this.said,
    );
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), WAIT_MS);
  }

  key(event) {
    if (event.key === "Enter") {
      event.preventDefault();
      if (this.query !== this.input.value) this.run();
      else this.step(event.shiftKey ? -1 : 1);
    }
    if (event.key === "Escape") {
      event.preventDefault(); // or the browser would empty the field; n and N go on from here
      this.input.blur();
    }
  }

  run() {
    clearTimeout(this.timer);
    if (this.query === this.input.value) return;
    this.query = this.input.value;
    this.hits = findAll(this.app.trace, this.index, this.query);
    this.at = -1;
    if (this.hits.length) this.step(1);
    else this.said.textContent = this.query ? "no hit" : "";
  }

  step(by) {
    if (this.query !== this.input.value) return this.run();
    if (!this.hits.length) return;
    this.at = (this.at + by + this.hits.length) % this.hits.length;
    const hit = this.hits[this.at];
    this.app.go(hit);
    const most = this.hits.length === MOST_HITS ? " or more" : "";
    this.said.textContent = `${count(this.at + 1)} of ${count(this.hits.length)}${most}, turn ${hit.turn.id}, ${hit.area}`;
  }
}
