// Every call of the rollout on one time axis.

import { button, el } from "./dom.js";
import { seconds } from "./numbers.js";
import { phaseBars, phaseLegend, phasesOf } from "./phases.js";
import { VirtualLines } from "./virtual.js";

const CALL_LINE = 30;

export function timelinePanel(app) {
  const timed = app.trace.turns.filter((turn) => phasesOf(turn).length);
  if (!timed.length) return [el("h2", {}, "Timeline"), el("p", {}, "No times were recorded.")];
  const ends = timed.map((turn) => phasesOf(turn).at(-1).end);
  const start = Math.min(...timed.map((turn) => phasesOf(turn)[0].start));
  const end = Math.max(...ends);
  const box = el("div", { class: "timeline", tabindex: 0, role: "region", "aria-label": "Calls over time" });
  const lines = new VirtualLines(box, CALL_LINE, (index) => {
    const turn = timed[index];
    const phases = phasesOf(turn);
    return el(
      "div", { class: "call-line" },
      button(`Turn ${turn.id}`, () => app.select(turn), { class: "link" }),
      phaseBars(turn, start, end),
      el("span", { class: "quiet number" }, seconds(phases.at(-1).end - phases[0].start)),
    );
  });
  box.style.height = `min(60vh, ${timed.length * CALL_LINE + 2}px)`;
  requestAnimationFrame(() => lines.setCount(timed.length));
  const when = app.trace.data.started_at ? `, from ${new Date(app.trace.data.started_at * 1000).toISOString()}` : "";
  return [
    el("h2", {}, "Timeline"),
    el("p", {}, `${timed.length} calls in ${seconds(end - start)}${when}. Only what was recorded is shown.`),
    phaseLegend(timed),
    box,
    el("h3", {}, "The rollout"),
    timings(app.trace.data.timings),
  ];
}

function timings(named) {
  const entries = Object.entries(named);
  if (!entries.length) return el("p", {}, "It has not finished.");
  return el("ul", { class: "plain-list" }, entries.map(([name, value]) => el("li", {}, `${name.replaceAll("_", " ")}: ${seconds(value)}`)));
}
