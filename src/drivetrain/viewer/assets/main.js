// The page: put together from its parts.

import { readAddress, writeAddress } from "./address.js";
import { App } from "./app.js";
import { badge, button, el } from "./dom.js";
import { findingsPanel } from "./findings.js";
import { helpDialog, listenToKeys } from "./keyboard.js";
import { count, many, percent } from "./numbers.js";
import { patchPanel } from "./patch.js";
import { provenancePanel } from "./provenance.js";
import { rowsPanel } from "./rows.js";
import { SearchBox } from "./search.js";
import { Tabs } from "./tabs.js";
import { testsPanel } from "./tests.js";
import { themeSwitch } from "./theme.js";
import { timelinePanel } from "./timeline.js";
import { Trace } from "./trace.js";
import { TurnList } from "./turnlist.js";
import { TurnPanel } from "./turnpanel.js";

function headline(trace) {
  const { data } = trace;
  const outcome = data.reward === null ? "bad" : data.reward > 0 ? "good" : "";
  return el(
    "p", { class: "headline" },
    badge(data.status || "not finished", data.status === "ok" ? "" : "bad"), " ",
    badge(data.reward === null ? "ungraded" : `reward ${data.reward}`, outcome), " ",
    `${many(trace.turns.length, "turn")}, ${many(trace.rows.length, "row")}, ${many(trace.forks.length, "fork")}, ` +
      `${count(data.trained_tokens)} of ${count(data.sampled_tokens)} sampled tokens trained` +
      (data.sampled_tokens ? ` (${percent(data.trained_tokens / data.sampled_tokens)})` : ""),
  );
}

function panelsOf(app, turnPanel) {
  const found = app.trace.data.findings.length;
  return [
    { name: "turns", label: "Turns", make: () => turnPanel.node },
    { name: "timeline", label: "Timeline", make: () => timelinePanel(app) },
    { name: "tests", label: "Tests", make: () => testsPanel(app) },
    { name: "patch", label: "Patch", make: () => patchPanel(app) },
    { name: "rows", label: `Rows (${app.trace.rows.length})`, make: () => rowsPanel(app) },
    { name: "findings", label: `Findings (${found})`, make: () => findingsPanel(app) },
    { name: "provenance", label: "Provenance", make: () => provenancePanel(app) },
  ];
}

function keysOf(app, parts) {
  const { search, turnPanel, panels, theme, help } = parts;
  return [
    ["j", "next turn", () => app.step(1)],
    ["k", "previous turn", () => app.step(-1)],
    ["g", "first turn", () => app.step(-1e9)],
    ["G", "last turn", () => app.step(1e9)],
    ["f", "next fork", () => { app.nextFork(); document.getElementById("fork")?.setAttribute("open", ""); }],
    ["/", "search", () => search.input.focus()],
    ["n", "next hit", () => search.step(1)],
    ["N", "previous hit", () => search.step(-1)],
    ["h", "log-prob heat", () => app.toggle("heat")],
    ["w", "whole prompt", () => app.toggle("whole")],
    ["s", "the first sampled token", () => turnPanel.tokens.toSampled()],
    ["c", "copy the ids of the selected tokens, or of the turn", () => turnPanel.tokens.copy()],
    ["Escape", "select no token", () => turnPanel.tokens.clear()],
    ["t", "light, dark or as the system", () => theme.click()],
    [panels.map((panel, index) => index + 1).join(" "), "views", null],
    ["?", "this help", () => help().showModal()],
  ];
}

function start() {
  const app = new App(new Trace(document.getElementById("document").textContent));
  const { data } = app.trace;
  const search = new SearchBox(app);
  const turnList = new TurnList(app);
  const turnPanel = new TurnPanel(app);
  const panels = panelsOf(app, turnPanel);
  const tabs = new Tabs(app, panels);
  const theme = themeSwitch();
  let dialog = null;
  const keys = keysOf(app, { search, turnPanel, panels, theme, help: () => dialog });
  dialog = helpDialog(keys);
  const status = el("div", { class: "status", id: "status", role: "status" });
  app.status = (words) => { status.textContent = words; };

  document.getElementById("app").append(
    el(
      "header", { class: "top" },
      el("div", { class: "title" }, el("h1", {}, data.rollout_id), headline(app.trace)),
      el("div", { class: "tools" }, search.node, status, theme, button("Keys", () => dialog.showModal(), { id: "show-help", title: "?" })),
    ),
    el("nav", { class: "side", "aria-label": "Turns of the rollout" }, turnList.box),
    el("main", { class: "main" }, tabs.list, tabs.bodies),
    dialog,
  );
  document.body.classList.toggle("without-turns", !app.trace.turns.length);
  tabs.show();
  turnList.start();
  turnPanel.start();
  app.listen(() => writeAddress(app));
  listenToKeys([
    ...keys.filter(([, , action]) => action),
    ...panels.map(({ name }, index) => [String(index + 1), "", () => app.show(name)]),
  ]);
  readAddress(app);
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

start();
