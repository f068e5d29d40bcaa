// Light, dark, or as the system says.

import { button } from "./dom.js";

const NAMES = ["auto", "light", "dark"];
const STORED = "drivetrain-viewer-theme";

export function themeSwitch() {
  let name = remembered();
  const node = button("", () => apply(NAMES[(NAMES.indexOf(name) + 1) % NAMES.length]), { id: "theme", title: "t" });
  function apply(next) {
    name = next;
    if (name === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", name);
    node.textContent = `Theme: ${name}`;
    try {
      localStorage.setItem(STORED, name);
    } catch {
      // A page from a file may have no storage; the choice then lasts as long as the page.
    }
  }
  apply(name);
  return node;
}

function remembered() {
  try {
    const found = localStorage.getItem(STORED);
    return NAMES.includes(found) ? found : "auto";
  } catch {
    return "auto";
  }
}
