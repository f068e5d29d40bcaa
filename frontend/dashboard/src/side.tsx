import { Bars } from "./bars";
import { bytes, clock, count, seconds, total, words } from "./format";
import type { State, Trouble } from "./model";
import { traceUrl } from "./rollouts";

export function Side({ state: { summary, run } }: { state: State }) {
  const judged = summary.judged ?? 0;
  const forks = summary.forks ?? {};
  const facts: [string, string | undefined][] = [
    ["sandboxes", summary.sandboxes && sandboxes(summary.sandboxes)],
    ["sessions", summary.sessions && Object.entries(summary.sessions).map(([state, n]) => `${n} ${state}`).join(", ")],
    ["journal", summary.journal_bytes ? bytes(summary.journal_bytes) : undefined],
    ["event loop", summary.lag === undefined ? undefined : `${seconds(summary.lag)} late`],
    ...Object.entries(run?.config ?? {}).map(([name, value]): [string, string] => [words(name), Array.isArray(value) ? value.join(", ") : String(value)]),
  ];
  return (
    <aside class="side-panel" aria-label="Details">
      <section>
        <h2>Fork reasons <small class="quiet">{total(forks) ? `${count(total(forks))} forks` : ""}</small></h2>
        {total(forks) ? <Bars counts={forks} kind="fork" /> : <p class="quiet empty">No fork: every prompt went on from what was sampled.</p>}
      </section>
      <section>
        <h2>Masked because <small class="quiet">{total(summary.masked) ? "share of sampled" : ""}</small></h2>
        {total(summary.masked) ? <Bars counts={summary.masked ?? {}} of={judged} kind="masked" share /> : <p class="quiet empty">{judged ? "Nothing: every sampled token is trained." : "Known when a rollout ends."}</p>}
      </section>
      {total(summary.refusals) > 0 && <section><h2>Refused calls</h2><Bars counts={summary.refusals ?? {}} kind="bad" /></section>}
      <section>
        <h2>Errors <small class="quiet">{summary.troubles?.length ? "latest first" : ""}</small></h2>
        {summary.troubles?.length ? <Troubles troubles={summary.troubles} /> : <p class="quiet empty">None.</p>}
      </section>
      <section>
        <h2>Machine and run</h2>
        <dl class="small-facts">
          {facts.map(([name, value]) => value !== undefined && <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}
        </dl>
      </section>
    </aside>
  );
}

function Troubles({ troubles }: { troubles: Trouble[] }) {
  return (
    <ul class="troubles">
      {troubles.slice(0, 20).map((each) => (
        <li key={`${each.at} ${each.rollout} ${each.kind}`}>
          <p class="trouble-head">
            <span class="badge bad">{words(each.kind)}</span>
            {each.rollout && <a href={traceUrl(each.rollout)} target="_blank" rel="opener">{each.rollout}</a>}
            <time class="quiet">{each.at ? clock(each.at) : ""}</time>
          </p>
          <p class="trouble-text" title={each.what}>{each.what}</p>
        </li>
      ))}
    </ul>
  );
}

function sandboxes(counts: Record<string, number>): string {
  const { agent = 0, grader = 0 } = counts;
  return agent + grader ? `${agent} agents, ${grader} graders` : "none";
}
