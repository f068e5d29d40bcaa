// Keys. None acts while something is typed or a modifier is held.

import { button, el } from "./dom.js";

export function helpDialog(keys) {
  const dialog = el(
    "dialog", { id: "help", "aria-labelledby": "help-title" },
    el("h2", { id: "help-title" }, "Keys"),
    el("dl", { class: "keys" }, keys.map(([key, words]) => el("div", {}, el("dt", {}, el("kbd", {}, key)), el("dd", {}, words)))),
    el("p", { class: "quiet" }, "In the token pane: arrows select a token, with Shift a span; so do clicks."),
    button("Close", () => dialog.close(), { autofocus: true }),
  );
  return dialog;
}

// `keys`: [key, words, action].
export function listenToKeys(keys) {
  const actions = new Map(keys.flatMap(([names, , action]) => names.split(" ").map((name) => [name, action])));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.target.closest("input, textarea, select, dialog[open]")) return;
    const action = actions.get(event.key);
    if (!action) return;
    event.preventDefault();
    action();
  });
}
