// Where the time of a call went, from the moments that were recorded.

import { el } from "./dom.js";
import { seconds } from "./numbers.js";

const PHASES = [
  ["match", "match and render", "received", ["gate", "dispatched"]],
  ["queue", "queue", "gate", ["dispatched"]],
  ["prefill", "engine, to the first token", "dispatched", ["first_token"]],
  ["decode", "engine, sampling", "first_token", ["completed"]],
  ["engine", "engine", "dispatched", ["completed"]],
  ["commit", "commit", "completed", ["committed"]],
  ["delivery", "delivery", "committed", ["delivered"]],
];

// [{ kind, name, start, end }], in seconds since the rollout's first call.
export function phasesOf(turn) {
  const times = turn.times;
  const found = [];
  for (const [kind, name, from, to] of PHASES) {
    const end = to.map((moment) => times[moment]).find((at) => at !== undefined);
    if (times[from] === undefined || end === undefined) continue;
    if (kind === "engine" && times.first_token !== undefined) continue;
    found.push({ kind, name, start: times[from], end: Math.max(end, times[from]) });
  }
  return found;
}

// The phases that these turns have.
export function phaseLegend(turns) {
  const kinds = new Set(turns.flatMap((turn) => phasesOf(turn).map((phase) => phase.kind)));
  const seen = PHASES.filter(([kind]) => kinds.has(kind)).map(([kind, name]) => el("span", { class: "key" }, el("i", { class: `phase ${kind}`, "aria-hidden": "true" }), name));
  return el("p", { class: "legend" }, seen);
}

// Bars from `start` to `end` seconds.
export function phaseBars(turn, start, end) {
  const phases = phasesOf(turn);
  const scale = 100 / (end - start || 1);
  const words = phases.map((phase) => `${phase.name} ${seconds(phase.end - phase.start)}`).join(", ");
  const bars = el("div", { class: "bars", role: "img", "aria-label": words || "no times were recorded", title: words });
  for (const phase of phases) {
    const bar = el("i", { class: `phase ${phase.kind}` });
    bar.style.left = `${(phase.start - start) * scale}%`;
    bar.style.width = `max(2px, ${(phase.end - phase.start) * scale}%)`;
    bars.append(bar);
  }
  return bars;
}

export function phaseWords(turn) {
  return phasesOf(turn).map((phase) => `${phase.name} ${seconds(phase.end - phase.start)}`).join(", ");
}
