import { Sparkline, Stack } from "./bars";
import { clock, count, percent, seconds, total } from "./format";
import type { State, Summary } from "./model";

const PHASES: [name: string, label: string][] = [
  ["done", "done"], ["sealed", "sealed"], ["grading", "grading"], ["agent", "agent"], ["open", "open"],
  ["starting", "starting"], ["queued", "queued"],
];

export function Cards({ state }: { state: State }) {
  const { summary, run, points } = state;
  const serve = run?.kind === "serve";
  return (
    <section class="cards" aria-label="Summary">
      <RolloutsCard state={state} />
      {!serve && <RewardCard summary={summary} />}
      {!serve && <PassCard summary={summary} />}
      <SpeedCard summary={summary} points={points} folder={run?.kind === "folder"} />
      <TrainedCard summary={summary} />
      {summary.engine && <EngineCard summary={summary} />}
    </section>
  );
}

function RolloutsCard({ state: { run, summary, rollouts } }: { state: State }) {
  const phases = summary.phases ?? {};
  const ended = (phases.done ?? 0) + (phases.sealed ?? 0);
  const all = Math.max(rollouts.size, run?.planned ?? 0);
  const missing = all - rollouts.size;
  const counts = { ...phases, queued: (phases.queued ?? 0) + missing };
  return (
    <article class="card wide">
      <h2>{run?.kind === "serve" ? "Sessions" : "Rollouts"}</h2>
      <p class="big">{ended}<small> of {all}{run?.kind === "serve" ? " sealed" : " done"}</small></p>
      <Stack label="By phase" parts={PHASES.map(([name, label]) => [label, counts[name as keyof typeof counts] ?? 0, `phase-${name}`])} />
      <ul class="legend">
        {PHASES.filter(([name]) => (counts as Record<string, number>)[name]).map(([name, label]) => (
          <li key={name}><i class={`part phase-${name}`} aria-hidden="true" />{label} <b>{(counts as Record<string, number>)[name]}</b></li>
        ))}
      </ul>
    </article>
  );
}

function RewardCard({ summary }: { summary: Summary }) {
  const reward = summary.reward ?? { graded: 0, mean: null, solved: 0, ungraded: 0 };
  const unsolved = reward.graded - reward.solved;
  const truncated = summary.statuses?.truncated ?? 0;
  return (
    <article class="card">
      <h2>Reward</h2>
      <p class="big">{reward.mean == null ? "–" : reward.mean.toFixed(2)}<small> mean of {reward.graded}</small></p>
      <Stack label="Rollouts" parts={[["solved", reward.solved, "good"], ["not solved", unsolved, "bad"], ["ungraded", reward.ungraded, "masked"]]} />
      <ul class="legend">
        <li><i class="part good" aria-hidden="true" />solved <b>{reward.solved}</b></li>
        <li><i class="part bad" aria-hidden="true" />not <b>{unsolved}</b></li>
        {reward.ungraded > 0 && <li title="Excluded, never counted as zero"><i class="part masked" aria-hidden="true" />ungraded <b>{reward.ungraded}</b></li>}
        {truncated > 0 && <li title="A budget, deadline or token limit ended them; they are graded">truncated <b>{truncated}</b></li>}
      </ul>
    </article>
  );
}

function PassCard({ summary }: { summary: Summary }) {
  const passes = summary.pass_at ?? [];
  return (
    <article class="card">
      <h2>pass@k</h2>
      {passes.length === 0 ? <p class="quiet empty">After the first graded rollout.</p> : (
        <ul class="passes">
          {passes.slice(0, 5).map(([k, value, tasks]) => (
            <li key={k} title={`Mean over ${tasks} tasks with ${k} graded attempts or more`}>
              <span>@{k}</span>
              <span class="bar-track" aria-hidden="true"><span class="part good" style={{ width: `${100 * value}%` }} /></span>
              <b class="number">{percent(value)}</b>
            </li>
          ))}
        </ul>
      )}
    </article>
  );
}

function SpeedCard({ summary, points, folder }: { summary: Summary; points: State["points"]; folder: boolean }) {
  const last = points.at(-1);
  const shown = points.slice(-180);
  return (
    <article class="card">
      <h2>Tokens</h2>
      {folder ? <p class="big">{count(summary.sampled)}<small> sampled</small></p> : (
        <>
          <p class="big">{count(last?.[1] ?? 0)}<small> sampled / s</small></p>
          <Sparkline values={shown.map((point) => point[1])} label={shown[0] ? `Tokens per second since ${clock(shown[0][0])}` : "Tokens per second"} />
        </>
      )}
      <p class="card-foot">
        {!folder && <><b>{count(summary.sampled)}</b> sampled, </>}<b>{count(summary.prompt)}</b> prompt, <b>{count(summary.turns)}</b> turns
      </p>
    </article>
  );
}

function TrainedCard({ summary }: { summary: Summary }) {
  const judged = summary.judged ?? 0;
  const masked = total(summary.masked);
  return (
    <article class="card">
      <h2>Masked</h2>
      <p class="big">{judged ? percent(masked / judged) : "–"}<small> of {count(judged)} sampled</small></p>
      <Stack label="Sampled tokens of ended rollouts" parts={[["trained", judged - masked, "trained"], ["masked", masked, "masked"]]} />
      <ul class="legend">
        <li><i class="part trained" aria-hidden="true" />trained <b>{count(judged - masked)}</b></li>
        <li><i class="part masked" aria-hidden="true" />masked <b>{count(masked)}</b></li>
      </ul>
    </article>
  );
}

function EngineCard({ summary }: { summary: Summary }) {
  const engine = summary.engine ?? {};
  const fence = summary.fence;
  return (
    <article class="card">
      <h2>Engine</h2>
      <p class="big">{engine.in_flight ?? 0}<small> calls in flight</small></p>
      <dl class="small-facts">
        <div><dt>at the gate</dt><dd>{engine.waiting ?? 0} waiting</dd></div>
        <div><dt>latency</dt><dd>{engine.p50 == null ? "–" : `${seconds(engine.p50)} · p95 ${seconds(engine.p95 ?? engine.p50)}`}</dd></div>
        {fence && (
          <div>
            <dt>gate</dt>
            <dd><span class={`badge ${fence.failed ? "bad" : fence.state === "open" ? "good" : "fork"}`}>{fence.failed ? "failed" : fence.state}</span>
              {fence.state !== "open" && ` ${seconds(fence.paused_for_s)}`}</dd>
          </div>
        )}
        {fence && <div><dt>policy</dt><dd>{fence.policy_version}{fence.counts.pauses > 0 && `, ${fence.counts.pauses} updates`}</dd></div>}
      </dl>
    </article>
  );
}
