// The messages of the selected turn: what its request adds, and what was served.

import { el } from "./dom.js";
import { count } from "./numbers.js";
import { fittingColumns, VirtualLines } from "./virtual.js";
import { visibleNodes } from "./visible.js";
import { wrapped } from "./wrap.js";

const MESSAGE_LINE = 21;

// The texts of a message that are shown and searched: { part, text }.
export function blocks(message) {
  const found = [];
  if (message.reasoning) found.push({ part: "reasoning", text: message.reasoning });
  if (message.content || !(message.tool_calls?.length || message.reasoning)) found.push({ part: "", text: message.content ?? "" });
  for (const call of message.tool_calls ?? []) found.push({ part: `calls ${call.name}`, text: pretty(call.arguments), id: call.id });
  return found;
}

// Arguments with one line per field where they are JSON; else as they are.
function pretty(text) {
  try {
    const value = JSON.parse(text);
    if (value === null || typeof value !== "object" || Array.isArray(value)) return text;
    return Object.entries(value).map(([name, field]) => `${name}: ${typeof field === "string" ? field : JSON.stringify(field)}`).join("\n");
  } catch {
    return text;
  }
}

// Own messages of a turn with its reply, as they are searched.
export function ownBlocks(turn) {
  return [...turn.messages, turn.reply].flatMap(blocks);
}

export class MessagePane {
  constructor(app) {
    this.app = app;
    this.entries = [];
    this.lines = [];
    this.title = el("h3", { id: "messages-title" }, "Messages");
    this.box = el("div", { class: "message-box", id: "messages", tabindex: 0, role: "region", "aria-labelledby": "messages-title" });
    this.view = new VirtualLines(this.box, MESSAGE_LINE, (index) => this.line(index));
    this.node = el(
      "section", { class: "pane", "aria-labelledby": "messages-title" },
      el("div", { class: "pane-head" }, this.title), this.box,
    );
    new ResizeObserver(() => this.resized()).observe(this.box);
    app.listen((changed) => this.changed(changed));
  }

  changed(changed) {
    if (changed === "turn" || changed === "view") this.show();
    if (changed === "hit") this.showHit();
  }

  show() {
    const { turn, trace, whole } = this.app;
    if (!turn) return;
    const request = trace.request(turn, whole);
    const added = turn.messages.length;
    this.title.textContent = whole
      ? `Messages: whole request of ${count(turn.keep_messages + added)}, and the reply`
      : `Messages: ${count(added)} added, and the reply` + (turn.keep_messages ? ` (behind ${count(turn.keep_messages)} of turn ${turn.source})` : "");
    const spoken = [...request, { message: turn.reply, from: turn, served: true }];
    this.entries = spoken.flatMap(({ message, from, served }) =>
      blocks(message).map((block) => ({ ...block, role: message.role, name: message.name, from, served })));
    this.firstOwn = this.entries.length - ownBlocks(turn).length;
    this.layOut();
    this.box.scrollTop = 0;
    this.view.draw();
  }

  layOut() {
    this.width = fittingColumns(this.box);
    this.lines = this.entries.flatMap((entry, block) => [
      { block, head: true },
      ...wrapped(entry.text, this.width).map(([start, end]) => ({ block, start, end })),
    ]);
    this.view.setCount(this.lines.length);
  }

  resized() {
    if (this.app.turn && this.box.clientWidth && fittingColumns(this.box) !== this.width) this.layOut();
  }

  line(index) {
    const { block, head, start, end } = this.lines[index];
    const entry = this.entries[block];
    if (head) return this.head(entry);
    const hit = this.app.hit?.area === "messages" && block === this.firstOwn + this.app.hit.block ? this.app.hit : null;
    const text = entry.text.slice(start, end);
    const kind = `message-line role-${entry.role}${entry.part === "reasoning" ? " reasoning" : ""}`;
    if (!hit || hit.stop <= start || hit.start >= end) return el("div", { class: kind }, visibleNodes(text));
    const from = Math.max(0, hit.start - start);
    const to = Math.min(end, hit.stop) - start;
    return el(
      "div", { class: kind },
      visibleNodes(text.slice(0, from)), el("mark", {}, visibleNodes(text.slice(from, to))), visibleNodes(text.slice(to)),
    );
  }

  head(entry) {
    const served = entry.served ? (entry.from === this.app.turn ? "served" : `served in turn ${entry.from.id}`) : "";
    return el(
      "div", { class: `message-head role-${entry.role}` },
      el("strong", {}, entry.role), entry.part ? ` ${entry.part}` : "", served ? el("span", { class: "quiet" }, ` ${served}`) : "",
    );
  }

  showHit() {
    const hit = this.app.hit;
    if (hit?.area !== "messages") return this.view.draw();
    const block = this.firstOwn + hit.block;
    const line = this.lines.findIndex((each) => each.block === block && !each.head && each.end >= hit.start);
    this.view.reveal(Math.max(0, line));
  }
}
