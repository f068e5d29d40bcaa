import { count, percent, words } from "./format";
import type { Counts } from "./model";

// One bar of shares, its parts named beside it.
export function Stack({ parts, label }: { parts: [name: string, value: number, kind: string][]; label: string }) {
  const all = parts.reduce((sum, [, value]) => sum + value, 0);
  const text = parts.filter(([, value]) => value > 0).map(([name, value]) => `${name} ${value}`).join(", ");
  return (
    <div class="stack" role="img" aria-label={`${label}: ${text || "nothing yet"}`}>
      {all > 0 && parts.map(([name, value, kind]) => value > 0 && (
        <span key={name} class={`part ${kind}`} style={{ width: `${(100 * value) / all}%` }} title={`${name}: ${value}`} />
      ))}
    </div>
  );
}

// Counts by name, the largest first, as bars against `of` (default: the largest).
export function Bars({ counts, of, kind, share = false }: { counts: Counts; of?: number; kind: string; share?: boolean }) {
  const entries = Object.entries(counts).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const most = of ?? Math.max(1, ...entries.map(([, value]) => value));
  return (
    <ul class="bars-list">
      {entries.map(([name, value]) => (
        <li key={name}>
          <span class="bar-name">{words(name)}</span>
          <span class="bar-track" aria-hidden="true"><span class={`part ${kind}`} style={{ width: `${(100 * value) / most}%` }} /></span>
          <span class="number">{share ? percent(value / most) : count(value)}</span>
        </li>
      ))}
    </ul>
  );
}

// A series as an area; the text beside it says the number.
export function Sparkline({ values, label }: { values: number[]; label: string }) {
  const width = 240;
  const height = 44;
  const most = Math.max(1e-9, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(1)},${(height - 1 - (value / most) * (height - 4)).toFixed(1)}`);
  return (
    <svg class="spark" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label={label}>
      {points.length > 1 && <polygon points={`0,${height} ${points.join(" ")} ${width},${height}`} />}
      {points.length > 1 && <polyline points={points.join(" ")} />}
    </svg>
  );
}
