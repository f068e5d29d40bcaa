// The list: filtered, sorted, and only the lines in sight are elements of the page.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, percent, seconds, total, words } from "./format";
import { Groups } from "./groups";
import type { Rollout, State } from "./model";

const HEIGHT = 32;

export function traceUrl(id: string): string {
  return `/dashboard/trace/${encodeURIComponent(id)}`;
}

interface Choice {
  name: string;
  keep: (rollout: Rollout) => boolean;
}

const running = (one: Rollout) => ["starting", "agent", "grading", "open"].includes(one.phase ?? "queued");
const CHOICES: Choice[] = [
  { name: "all", keep: () => true },
  { name: "running", keep: running },
  { name: "ended", keep: (one) => one.phase === "done" || one.phase === "sealed" },
  { name: "solved", keep: (one) => (one.reward ?? 0) >= 1 },
  { name: "not solved", keep: (one) => one.reward !== undefined && one.reward < 1 },
  { name: "failed", keep: (one) => one.phase === "done" && one.reward === undefined },
  { name: "forked", keep: (one) => total(one.forks) > 0 },
];

interface Column {
  name: string;
  title: string;
  number?: boolean;
  value: (rollout: Rollout, now: number) => number | string;
}

const ORDER = ["open", "grading", "agent", "starting", "queued", "done", "sealed"];
const COLUMNS: Column[] = [
  { name: "rollout", title: "Rollout", value: (one) => one.id },
  { name: "state", title: "State", value: (one) => ORDER.indexOf(one.phase ?? "queued") },
  { name: "reward", title: "Reward", number: true, value: (one) => one.reward ?? -1 },
  { name: "turns", title: "Turns", number: true, value: (one) => one.turns ?? 0 },
  { name: "tokens", title: "Sampled", number: true, value: (one) => one.sampled ?? 0 },
  { name: "masked", title: "Masked", number: true, value: (one) => maskedShare(one) ?? -1 },
  { name: "forks", title: "Forks", number: true, value: (one) => total(one.forks) },
  { name: "time", title: "Time", number: true, value: (one, now) => duration(one, now) ?? -1 },
];

export function Rollouts({ state }: { state: State }) {
  const [choice, setChoice] = useState("all");
  const [text, setText] = useState("");
  const [sort, setSort] = useState<{ by: string; down: boolean }>({ by: "state", down: false });
  const [view, setView] = useState<"list" | "groups">("list");
  const serve = state.run?.kind === "serve";
  const now = state.points.at(-1)?.[0] ?? Date.now() / 1000;
  const all = useMemo(() => [...state.rollouts.values()], [state]);
  const counts = useMemo(() => new Map(CHOICES.map(({ name, keep }) => [name, all.filter(keep).length])), [all]);
  const shown = useMemo(() => {
    const keep = CHOICES.find(({ name }) => name === choice)?.keep ?? (() => true);
    const wanted = text.trim().toLowerCase();
    const value = COLUMNS.find(({ name }) => name === sort.by)?.value ?? ((one: Rollout) => one.id);
    const found = all.filter((one) => keep(one) && (!wanted || matches(one, wanted)));
    const sign = sort.down ? -1 : 1;
    return found
      .map((one) => ({ one, key: value(one, now) }))
      .sort((a, b) => sign * compare(a.key, b.key) || compare(a.one.id, b.one.id))
      .map(({ one }) => one);
  }, [all, choice, text, sort]);
  return (
    <section class="list-panel" aria-label={serve ? "Sessions" : "Rollouts"}>
      <div class="list-tools">
        <div class="chips" role="group" aria-label="Show">
          {CHOICES.filter(({ name }) => name === "all" || name === choice || counts.get(name)).map(({ name }) => (
            <button key={name} type="button" class="switch chip" aria-pressed={choice === name} onClick={() => setChoice(name)}>
              {name} <b>{counts.get(name)}</b>
            </button>
          ))}
        </div>
        {!serve && (
          <div class="chips" role="group" aria-label="As">
            {(["list", "groups"] as const).map((name) => (
              <button key={name} type="button" class="switch chip" aria-pressed={view === name} onClick={() => setView(name)}>{name}</button>
            ))}
          </div>
        )}
        <input
          id="filter"
          type="search"
          placeholder="Filter: task, agent, error"
          aria-label="Filter by name or error"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => event.key === "Escape" && (setText(""), event.currentTarget.blur())}
        />
      </div>
      {view === "groups" && !serve ? <Groups rollouts={shown} /> : (
        <List rows={shown} all={all.length} now={now} sort={sort} setSort={setSort} live={state.run?.live !== false && !state.summary.finished} />
      )}
      {(state.summary.left_out ?? 0) > 0 && <p class="quiet list-foot">{state.summary.left_out} older sessions are not shown; the journal has them.</p>}
    </section>
  );
}

interface ListProps {
  rows: Rollout[];
  all: number;
  now: number;
  live: boolean;
  sort: { by: string; down: boolean };
  setSort: (sort: { by: string; down: boolean }) => void;
}

function List({ rows, all, now, sort, setSort, live }: ListProps) {
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const [chosen, setChosen] = useState("");
  useEffect(() => {
    const node = box.current;
    if (!node) return;
    const watch = new ResizeObserver(() => setRoom(node.clientHeight));
    watch.observe(node);
    return () => watch.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(top / HEIGHT) - 4);
  const last = Math.min(rows.length, Math.ceil((top + room) / HEIGHT) + 4);
  const at = rows.findIndex((one) => one.id === chosen);

  function go(to: number) {
    const next = Math.max(0, Math.min(rows.length - 1, to));
    const node = box.current;
    const one = rows[next];
    if (!node || !one) return;
    setChosen(one.id);
    const head = HEIGHT;
    if (next * HEIGHT < node.scrollTop) node.scrollTop = next * HEIGHT;
    else if ((next + 1) * HEIGHT + head > node.scrollTop + node.clientHeight) node.scrollTop = (next + 1) * HEIGHT + head - node.clientHeight;
  }

  function press(event: KeyboardEvent) {
    const page = Math.max(1, Math.floor(room / HEIGHT) - 2);
    const moves: Record<string, number> = {
      ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1,
    };
    const to = moves[event.key];
    if (to !== undefined) go(to);
    else if (event.key === "Enter" && event.target === box.current && at >= 0) window.open(traceUrl(rows[at]?.id ?? ""), "_blank");
    else return;
    event.preventDefault();
  }

  return (
    <div
      class="grid"
      role="grid"
      id="rollouts"
      tabIndex={0}
      ref={box}
      aria-label="Rollouts"
      aria-rowcount={rows.length + 1}
      aria-activedescendant={at >= first && at < last ? `row-${at}` : undefined}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
      onKeyDown={press}
    >
      <div class="row head" role="row" aria-rowindex={1}>
        {COLUMNS.map(({ name, title, number }) => (
          <span key={name} role="columnheader" class={number ? "number" : ""} aria-sort={sort.by === name ? (sort.down ? "descending" : "ascending") : "none"}>
            <button type="button" tabIndex={-1} onClick={() => setSort({ by: name, down: sort.by === name ? !sort.down : Boolean(number) })}>
              {title}<i aria-hidden="true">{sort.by === name ? (sort.down ? " ↓" : " ↑") : ""}</i>
            </button>
          </span>
        ))}
      </div>
      <div class="rows" role="rowgroup" style={{ height: `${rows.length * HEIGHT}px` }}>
        {rows.slice(first, last).map((one, offset) => (
          <Row key={one.id} one={one} index={first + offset} now={now} chosen={one.id === chosen} choose={setChosen} />
        ))}
        {rows.length === 0 && (
          <div role="row" class="nothing"><span role="gridcell" class="quiet">
            {all ? "No rollout is like that." : live ? "Nothing has begun yet. Rollouts appear here as they start." : "This run has recorded no rollout."}
          </span></div>
        )}
      </div>
    </div>
  );
}

interface RowProps {
  one: Rollout;
  index: number;
  now: number;
  chosen: boolean;
  choose: (id: string) => void;
}

function Row({ one, index, now, chosen, choose }: RowProps) {
  const share = maskedShare(one);
  const time = duration(one, now);
  const forks = Object.entries(one.forks ?? {}).map(([reason, n]) => `${words(reason)} ${n}`).join(", ");
  return (
    <div
      class={`row ${chosen ? "selected" : ""}`}
      role="row"
      id={`row-${index}`}
      aria-rowindex={index + 2}
      aria-selected={chosen}
      style={{ transform: `translateY(${index * HEIGHT}px)` }}
      onClick={() => choose(one.id)}
    >
      <span role="gridcell" class="name" title={one.error ? `${one.id}\n${one.error}` : one.id}>
        {one.phase === "queued" || one.phase === undefined
          ? one.id
          : <a href={traceUrl(one.id)} target="_blank" rel="opener" tabIndex={-1}>{one.id}</a>}
      </span>
      <span role="gridcell"><StateBadge one={one} /></span>
      <span role="gridcell" class="number">{one.reward === undefined ? "–" : <b class={one.reward >= 1 ? "won" : ""}>{Number(one.reward.toFixed(2))}</b>}</span>
      <span role="gridcell" class="number">{one.turns ?? 0}</span>
      <span role="gridcell" class="number">{count(one.sampled ?? 0)}</span>
      <span role="gridcell" class="number">{share === undefined ? "–" : percent(share)}</span>
      <span role="gridcell" class="number" title={forks}>{total(one.forks) || "–"}</span>
      <span role="gridcell" class="number">{time === undefined ? "–" : seconds(time)}</span>
    </div>
  );
}

function StateBadge({ one }: { one: Rollout }) {
  const phase = one.phase ?? "queued";
  if (phase === "done") {
    const kind = one.reward === undefined ? "masked" : one.reward >= 1 ? "good" : one.status === "ok" ? "" : "fork";
    return <span class={`badge ${kind}`} title={one.error}>{one.status === "ok" ? (one.reward !== undefined && one.reward >= 1 ? "solved" : "not solved") : words(one.status ?? "done")}</span>;
  }
  return (
    <span class={`state state-${phase}`}><i class={`part phase-${phase}`} aria-hidden="true" />{phase}{(one.calls ?? 0) > 0 && <small title="model calls being served"> sampling</small>}</span>
  );
}

export function maskedShare(one: Rollout): number | undefined {
  if (one.trained === undefined) return undefined;
  const masked = total(one.masked);
  return masked + one.trained > 0 ? masked / (masked + one.trained) : undefined;
}

function duration(one: Rollout, now: number): number | undefined {
  if (!one.started) return undefined;
  return Math.max(0, (one.ended || now) - one.started);
}

function matches(one: Rollout, wanted: string): boolean {
  return `${one.id} ${one.task ?? ""} ${one.agent ?? ""} ${one.session ?? ""} ${one.error ?? ""}`.toLowerCase().includes(wanted);
}

function compare(a: number | string, b: number | string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
