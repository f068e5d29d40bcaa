// What was exported for training.

import { copyText, idList } from "./copy.js";
import { button, el, table } from "./dom.js";
import { count, counts, many } from "./numbers.js";

export function rowsPanel(app) {
  const { rows, data } = app.trace;
  const nodes = [
    el("h2", {}, "Rows"),
    el("p", {}, `${many(rows.length, "row")}; ${count(data.trained_tokens)} of ${count(data.sampled_tokens)} sampled tokens are trained` +
      (Object.keys(data.masked).length ? `, not trained: ${counts(data.masked)}.` : ".")),
  ];
  if (!rows.length) return nodes;
  const cells = rows.map((row, index) => [
    String(index), row.label, turnLinks(app, row), count(row.prompt_tokens), count(row.response_tokens),
    count(row.trained_tokens), counts(row.masked), versions(row),
    button("Copy ids", () => copyRow(app, row), { "aria-label": `Copy ids of row ${index}` }),
  ]);
  const head = ["row", "label", "turns", "prompt", "response", "trained", "not trained here", "policy versions", "ids"];
  return [...nodes, table("Training rows of this rollout", head, cells)];
}

function turnLinks(app, row) {
  const trained = new Set(row.trained_turns);
  const shown = row.turns.length > 12 ? [...row.turns.slice(0, 6), null, ...row.turns.slice(-5)] : row.turns;
  return el("span", {}, shown.map((id) => (id === null ? " … " : [button(`${id}`, () => app.selectId(id), {
    class: "link", "aria-label": `Turn ${id}${trained.has(id) ? "" : ", context here"}`,
  }), trained.has(id) ? " " : " (context) "])).flat());
}

function versions(row) {
  return [...new Set(row.policy_spans.map(([, , first, last]) => (first === last ? `${first}` : `${first} to ${last}`)))].join(", ");
}

async function copyRow(app, row) {
  const last = app.trace.byId.get(row.turns.at(-1));
  const sequence = app.trace.sequence(last, true);
  const size = Math.min(sequence.length, row.prompt_tokens + row.response_tokens);
  await copyText(idList(app.trace.ids(sequence, 0, size)));
  app.status(`${many(size, "token id")} copied`);
}
