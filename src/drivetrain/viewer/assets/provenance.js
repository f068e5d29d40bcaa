// Where the rollout comes from: model, engine, template, agent, configuration.

import { el, facts } from "./dom.js";
import { lineView } from "./lineview.js";

export function provenancePanel(app) {
  const { data } = app.trace;
  const nodes = [
    el("h2", {}, "Provenance"),
    facts([
      ["rollout", data.rollout_id], ["session", data.session_id], ["task", data.task_id], ["agent", data.agent],
      ["group", data.group],
      ["started", data.started_at ? new Date(data.started_at * 1000).toISOString() : ""],
    ]),
  ];
  data.provenance.forEach((record, index) => {
    const turns = app.trace.turns.filter((turn) => turn.provenance === index + 1).length;
    nodes.push(el("h3", {}, `Record ${index + 1} (${turns} turns)`), facts(Object.entries(record).map(([name, value]) => [words(name), value])));
  });
  if (Object.keys(data.config_sha256).length) {
    nodes.push(el("h3", {}, "Configuration files in the sandbox (sha256)"), facts(Object.entries(data.config_sha256)));
  }
  for (const [title, value] of [["Agent", data.harness], ["Run", data.run]]) {
    if (Object.keys(value).length) nodes.push(el("h3", {}, title), lineView(JSON.stringify(value, null, 2), `${title}, as recorded`));
  }
  for (const name of ["stdout.log", "stderr.log"]) {
    if (data.files[name]) nodes.push(el("h3", {}, `End of the agent's ${name}`), lineView(data.files[name], name));
  }
  return nodes;
}

function words(name) {
  return name.replaceAll("_", " ");
}
