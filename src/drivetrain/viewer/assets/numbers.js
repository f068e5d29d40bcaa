// Numbers for people.

const GROUPED = new Intl.NumberFormat("en-US");

export function count(value) {
  return GROUPED.format(value);
}

export function many(value, one, more = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : more}`;
}

export function seconds(value) {
  if (value < 0.001) return "0 ms";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

export function percent(value) {
  return `${(100 * value).toFixed(value < 0.1 ? 2 : 1)} %`;
}

export function counts(named) {
  return Object.entries(named).map(([name, value]) => `${name} ${count(value)}`).join(", ");
}
