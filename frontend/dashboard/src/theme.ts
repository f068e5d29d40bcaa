// Light, dark, or as the system says; the trace viewer remembers it under the same name.

const NAMES = ["auto", "light", "dark"] as const;
export type Theme = (typeof NAMES)[number];
const STORED = "drivetrain-viewer-theme";

export function readTheme(): Theme {
  let stored: string | null = null;
  try {
    stored = localStorage.getItem(STORED);
  } catch {
    // Then it lasts as long as the page.
  }
  return show(NAMES.find((name) => name === stored) ?? "auto");
}

export function nextTheme(now: Theme): Theme {
  const next = NAMES[(NAMES.indexOf(now) + 1) % NAMES.length] ?? "auto";
  try {
    localStorage.setItem(STORED, next);
  } catch {
    // As above.
  }
  return show(next);
}

function show(theme: Theme): Theme {
  if (theme === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", theme);
  return theme;
}
