// Numbers and times as people read them.

export function count(value: number | undefined): string {
  if (value === undefined) return "–";
  if (value < 10_000) return String(Math.round(value));
  if (value < 1e6) return `${trim(value / 1e3)}k`;
  if (value < 1e9) return `${trim(value / 1e6)}M`;
  return `${trim(value / 1e9)}G`;
}

export function percent(share: number): string {
  const value = share * 100;
  return `${value > 0 && value < 10 ? value.toFixed(1) : Math.round(value)}%`;
}

export function bytes(value: number): string {
  if (value < 1e6) return `${Math.round(value / 1e3)} kB`;
  return value < 1e9 ? `${trim(value / 1e6)} MB` : `${trim(value / 1e9)} GB`;
}

export function seconds(value: number): string {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.floor(value / 60)}:${String(Math.floor(value % 60)).padStart(2, "0")} min`;
  return `${Math.floor(value / 3600)}:${String(Math.floor((value % 3600) / 60)).padStart(2, "0")} h`;
}

export function clock(at: number): string {
  return new Date(at * 1000).toLocaleTimeString([], { hour12: false });
}

export function words(name: string): string {
  return name.replaceAll("_", " ").replace(":", ": ");
}

export function total(counts: Record<string, number> | undefined): number {
  return Object.values(counts ?? {}).reduce((sum, each) => sum + each, 0);
}

function trim(value: number): string {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}
