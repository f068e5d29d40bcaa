// The key of the admin surface: typed in once, or in the fragment of a link. A browser sends a fragment to nobody.

const STORED = "drivetrain-key";

export function takeKey(): string {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    remember(given);
    history.replaceState(null, "", location.pathname);
    return given;
  }
  try {
    return sessionStorage.getItem(STORED) ?? "";
  } catch {
    return "";
  }
}

export function remember(key: string): void {
  try {
    sessionStorage.setItem(STORED, key);
  } catch {
    // Without storage the key lasts as long as the page.
  }
}

export function forget(): void {
  try {
    sessionStorage.removeItem(STORED);
  } catch {
    // There is nothing to remove.
  }
}
