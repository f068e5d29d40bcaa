// One line per task and agent: its attempts as squares, so that a group without spread is seen at once.

import { useMemo } from "preact/hooks";
import type { Rollout } from "./model";
import { traceUrl } from "./rollouts";

interface Group {
  task: string;
  agent: string;
  members: Rollout[];
  graded: number[];
}

export function Groups({ rollouts }: { rollouts: Rollout[] }) {
  const groups = useMemo(() => collect(rollouts), [rollouts]);
  return (
    <div class="groups" tabIndex={0} role="region" aria-label="Groups">
      <table>
        <thead>
          <tr><th scope="col">Task</th><th scope="col">Agent</th><th scope="col">Attempts</th><th scope="col" class="number">Mean</th><th scope="col">Signal</th></tr>
        </thead>
        <tbody>
          {groups.slice(0, 400).map((group) => (
            <tr key={`${group.task} ${group.agent}`}>
              <th scope="row">{group.task || "–"}</th>
              <td>{group.agent || "–"}</td>
              <td class="squares">{group.members.map((one) => <Square key={one.id} one={one} />)}</td>
              <td class="number">{group.graded.length ? mean(group.graded).toFixed(2) : "–"}</td>
              <td>{signal(group)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {groups.length > 400 && <p class="quiet">{groups.length - 400} more groups: filter to see them.</p>}
    </div>
  );
}

function Square({ one }: { one: Rollout }) {
  const kind = one.reward === undefined ? (one.phase === "done" ? "masked" : `phase-${one.phase ?? "queued"}`) : one.reward >= 1 ? "good" : one.reward > 0 ? "partly" : "bad";
  const said = one.reward === undefined ? (one.phase === "done" ? (one.status ?? "ungraded") : (one.phase ?? "queued")) : `reward ${one.reward}`;
  const label = `${one.id}: ${said}`;
  const started = one.phase !== undefined && one.phase !== "queued";
  return started
    ? <a class={`square part ${kind}`} href={traceUrl(one.id)} target="_blank" rel="opener" title={label} aria-label={label} />
    : <span class={`square part ${kind}`} role="img" title={label} aria-label={label} />;
}

function collect(rollouts: Rollout[]): Group[] {
  const found = new Map<string, Group>();
  for (const one of rollouts) {
    const name = `${one.task ?? ""}\0${one.agent ?? ""}`;
    const group = found.get(name) ?? { task: one.task ?? "", agent: one.agent ?? "", members: [], graded: [] };
    group.members.push(one);
    if (one.reward !== undefined) group.graded.push(one.reward);
    found.set(name, group);
  }
  for (const group of found.values()) group.members.sort((a, b) => (a.group ?? 0) - (b.group ?? 0));
  return [...found.values()].sort((a, b) => (a.task < b.task ? -1 : a.task > b.task ? 1 : a.agent < b.agent ? -1 : 1));
}

function mean(values: number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function signal(group: Group) {
  if (group.graded.length < 2) return <span class="quiet">–</span>;
  const some = Math.max(...group.graded) > Math.min(...group.graded);
  if (some) return <span class="badge good" title="Rewards differ: there are advantages to learn from">yes</span>;
  return <span class="quiet" title="All rewards are equal: their advantages are zero">none</span>;
}
