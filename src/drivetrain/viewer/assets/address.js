// The page's address names the turn and the view, so that a link can point into it: #turn=3 or #view=patch.

export function readAddress(app) {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const turn = app.trace.byId.get(Number(wanted.get("turn") ?? NaN));
  if (turn) app.select(turn);
  const view = wanted.get("view");
  if (document.getElementById(`tab-${view}`)) app.show(view);
}

export function writeAddress(app) {
  const parts = new URLSearchParams();
  if (app.tab !== "turns") parts.set("view", app.tab);
  if (app.turn) parts.set("turn", app.turn.id);
  try {
    history.replaceState(null, "", `#${parts}`);
  } catch {
    // Some embedders forbid it; the page works without.
  }
}
