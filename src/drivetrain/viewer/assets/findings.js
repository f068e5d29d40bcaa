// Everything that is out of the ordinary, with where it comes from.

import { button, el, table } from "./dom.js";
import { counts } from "./numbers.js";
import { visibleNodes } from "./visible.js";

const SOURCES = {
  trace: "check of the trace", note: "note of a turn", log: "the agent's own log", grading: "grading", journal: "event",
};

export function findingsPanel(app) {
  const { findings, masked } = app.trace.data;
  const nodes = [el("h2", {}, "Findings")];
  if (Object.keys(masked).length) nodes.push(el("p", {}, `Sampled and not trained: ${counts(masked)}.`));
  if (!findings.length) return [...nodes, el("p", {}, "Nothing was found: prompts, rows, log and grading agree.")];
  const rows = findings.map((found) => [
    SOURCES[found.source] ?? found.source, el("code", {}, visibleNodes(found.code)), where(app, found),
    el("span", {}, visibleNodes(found.detail ?? "")),
  ]);
  return [...nodes, table("Findings and events", ["source", "code", "where", "detail"], rows)];
}

function where(app, found) {
  if (app.trace.byId.has(found.turn)) return button(`turn ${found.turn}`, () => app.selectId(found.turn), { class: "link" });
  return el("span", {}, visibleNodes(found.where ?? ""));
}
