// Text to the clipboard; where the page may not write there, through a selection.

import { el } from "./dom.js";

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { class: "offscreen", "aria-hidden": "true", readonly: true });
    area.value = text;
    const focused = document.activeElement;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    focused?.focus?.();
  }
}

export function idList(ids) {
  return `[${ids.join(", ")}]`;
}
