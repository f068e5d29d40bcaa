// What the hidden tests said.

import { badge, el, facts, table } from "./dom.js";
import { lineView } from "./lineview.js";
import { visibleNodes } from "./visible.js";

const GOOD = "PASSED";

export function testsPanel(app) {
  const { grade, files, status, reward, error } = app.trace.data;
  const summary = grade.summary ?? {};
  const nodes = [el("h2", {}, "Tests")];
  if (error) nodes.push(el("p", { class: "alarm", role: "note" }, visibleNodes(error)));
  if (!Object.keys(summary).length) {
    nodes.push(el("p", {}, status ? "This rollout was not graded." : "This rollout has not finished."));
  } else {
    nodes.push(
      facts([
        ["outcome", badge(String(summary.outcome), summary.outcome === "resolved" ? "good" : "bad")],
        ["reward", reward === null ? "none (ungraded)" : reward],
        ["FAIL_TO_PASS", passed(summary.f2p_passed, summary.f2p_total)],
        ["PASS_TO_PASS", passed(summary.p2p_passed, summary.p2p_total)],
        ["reason", String(summary.reason ?? "").replaceAll("_", " ")],
        ["detail", summary.detail],
        ["planted tests", String(summary.canary ?? "").replaceAll("_", " ")],
        ["exit code of the suite", summary.exit_code],
        ["edits that did not count", (summary.dropped_paths ?? []).join(", ")],
      ]),
    );
  }
  for (const [kind, tests] of Object.entries(grade.tests ?? {})) nodes.push(...verdicts(kind, tests));
  const log = files["tests.log"];
  if (log) nodes.push(el("h3", {}, "End of the test log"), lineView(log, "Test log"));
  return nodes;
}

function passed(count, total) {
  return total === undefined ? "" : `${count ?? 0} of ${total} passed`;
}

// Tests that did not pass come first.
function verdicts(kind, tests) {
  if (!tests.length) return [];
  const ordered = [...tests].sort((a, b) => Number(a[1] === GOOD) - Number(b[1] === GOOD));
  const rows = ordered.map(([name, verdict]) => [badge(verdict, verdict === GOOD ? "good" : "bad"), el("code", {}, visibleNodes(name))]);
  const good = tests.filter(([, verdict]) => verdict === GOOD).length;
  return [el("h3", {}, `${kind}: ${good} of ${tests.length}`), table(`Verdicts of ${kind}`, ["verdict", "test"], rows)];
}
