// What the server sends (src/drivetrain/dashboard/model.py). Fields with their default value are left out.

export const VERSION = 1;

export interface Rollout {
  id: string;
  session?: string;
  task?: string;
  agent?: string;
  group?: number;
  phase?: Phase;
  status?: string;
  reward?: number;
  turns?: number;
  prompt?: number;
  sampled?: number;
  trained?: number;
  masked?: Counts;
  forks?: Counts;
  calls?: number;
  policy?: number;
  started?: number;
  ended?: number;
  error?: string;
}

export type Phase = "queued" | "starting" | "agent" | "grading" | "done" | "open" | "sealed";
export type Counts = Record<string, number>;
export type Point = [at: number, tokensPerS: number, inFlight: number];

export interface Run {
  name: string;
  kind?: "rollout" | "serve" | "folder";
  live?: boolean;
  path?: string;
  model?: string;
  engine?: string;
  planned?: number;
  config?: Record<string, unknown>;
}

export interface Fence {
  state: "open" | "draining" | "closed";
  policy_version: number;
  owner: string;
  mode: string;
  failed: string;
  paused_for_s: number;
  counts: { pauses: number };
}

export interface Trouble {
  at: number;
  what: string;
  kind: string;
  rollout?: string;
}

export interface Summary {
  phases?: Counts;
  statuses?: Counts;
  reward?: { graded: number; mean: number | null; solved: number; ungraded: number };
  pass_at?: [k: number, value: number, tasks: number][];
  forks?: Counts;
  turns?: number;
  prompt?: number;
  sampled?: number;
  judged?: number;
  masked?: Counts;
  refusals?: Counts;
  events?: Counts;
  sessions?: Counts;
  sandboxes?: Counts;
  engine?: { in_flight?: number; waiting?: number; context?: number; p50?: number; p95?: number };
  fence?: Fence;
  journal_bytes?: number;
  journal_blocked?: string;
  lag?: number;
  stopping?: boolean;
  troubles?: Trouble[];
  left_out?: number;
  finished?: boolean;
}

export interface Message {
  version?: number;
  run?: Run;
  rollouts?: Rollout[];
  gone?: string[];
  points?: Point[];
  summary?: Summary;
}

const MOST_POINTS = 300;

export interface State {
  run: Run | null;
  rollouts: Map<string, Rollout>;
  points: Point[];
  summary: Summary;
}

export const nothing: State = { run: null, rollouts: new Map(), points: [], summary: {} };

// A new state; the map of rollouts is the same object, changed in place, in a new wrapper.
export function apply(state: State, message: Message, snapshot: boolean): State {
  const rollouts = snapshot ? new Map<string, Rollout>() : state.rollouts;
  for (const rollout of message.rollouts ?? []) rollouts.set(rollout.id, rollout);
  for (const id of message.gone ?? []) rollouts.delete(id);
  const points = [...(snapshot ? [] : state.points), ...(message.points ?? [])].slice(-MOST_POINTS);
  return { run: message.run ?? state.run, rollouts, points, summary: message.summary ?? (snapshot ? {} : state.summary) };
}
