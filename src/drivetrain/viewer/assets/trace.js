// The document, and what follows from it: prompts, requests, and what each token is.

const TURN = {
  parent: null, fork_reason: "", fork_detail: "", source: null, keep: 0, keep_messages: 0, start: 0, delta: [],
  sampled: [], logprobs: [], trained: [], masked: "", messages: [], toolset: null, label: "agent", label_reason: "",
  parent_call: null, continues: null, finish_reason: "", notes: [], soft_mismatches: 0, delivered: false, times: {},
  dialect: "", engine: "", requested: {}, effective: {}, policy_versions: [], policy_spans: [], origin: {},
  provenance: 0,
};
const FORK = {
  detail: "", drift: "", shared_messages: 0, messages_before: 0, messages_now: 0, message: null, role_before: "",
  role_now: "", message_diff: [], tools: [], shared_tokens: 0, stored_tokens: 0, prompt_tokens: 0,
};
const ROW = { trained_turns: [], label: "", prompt_tokens: 0, response_tokens: 0, trained_tokens: 0, masked: {}, policy_spans: [] };
const DOCUMENT = {
  version: 1, session_id: "", task_id: "", agent: "", group: null, status: "", reward: null, error: "", started_at: 0,
  trained_tokens: 0, sampled_tokens: 0, masked: {}, turns: [], toolsets: [], forks: [], rows: [], grade: {},
  findings: [], provenance: [], config_sha256: {}, timings: {}, harness: {}, run: {}, files: {},
};
const TOKENS = { ids: [], texts: [], raw: {}, special: [], spelled: true };

export class Trace {
  constructor(json) {
    this.data = { ...DOCUMENT, ...JSON.parse(json) };
    this.tokens = { ...TOKENS, ...this.data.tokens };
    this.special = new Set(this.tokens.special);
    this.turns = this.data.turns.map((turn) => ({ ...TURN, ...turn }));
    this.forks = this.data.forks.map((fork) => ({ ...FORK, ...fork }));
    this.rows = this.data.rows.map((row) => ({ ...ROW, ...row }));
    this.byId = new Map(this.turns.map((turn) => [turn.id, turn]));
    this.place = new Map(this.turns.map((turn, index) => [turn.id, index]));
    this.forkOf = new Map(this.forks.map((fork) => [fork.turn, fork]));
  }

  // Where the first `count` of a turn's prompt and sampled tokens are stored: { turn, sampled, length }, in order.
  parts(turn, count) {
    const found = [];
    for (let node = turn; node && count > 0; node = this.byId.get(node.source)) {
      if (count > node.prompt_len) found.push({ turn: node, sampled: true, length: count - node.prompt_len });
      const own = Math.min(count, node.prompt_len) - node.keep;
      if (own > 0) found.push({ turn: node, sampled: false, length: own });
      count = Math.min(count, node.keep);
    }
    return found.reverse();
  }

  // A turn's tokens: all of its prompt and what it sampled, or only what it adds to what was stored before.
  sequence(turn, whole) {
    const end = turn.prompt_len + turn.sampled.length;
    if (whole) return new Sequence(this.parts(turn, end), 0);
    const own = [
      { turn, sampled: false, length: turn.delta.length },
      { turn, sampled: true, length: turn.sampled.length },
    ];
    return new Sequence(own.filter((part) => part.length), turn.keep);
  }

  prompt(turn) {
    return new Sequence(this.parts(turn, turn.prompt_len), 0);
  }

  // Messages of a turn's request before its own, and its own; served replies among them are marked.
  request(turn, whole) {
    const own = turn.messages.map((message) => ({ message, from: turn, served: false }));
    if (!whole) return own;
    const before = [];
    let count = turn.keep_messages;
    for (let node = this.byId.get(turn.source); node && count > 0; node = this.byId.get(node.source)) {
      const spoken = [
        ...node.messages.map((message) => ({ message, from: node, served: false })),
        { message: node.reply, from: node, served: true },
      ];
      if (count > node.keep_messages) before.unshift(...spoken.slice(0, count - node.keep_messages));
      count = Math.min(count, node.keep_messages);
    }
    return [...before, ...own];
  }

  // What a sampled token of a turn is for: { kind, row } or { kind, reason }.
  state(turn, offset) {
    for (const [start, stop, row] of turn.trained) {
      if (offset >= start && offset < stop) return { kind: "trained", row };
    }
    return { kind: "masked", reason: turn.masked };
  }

  text(token) {
    return this.tokens.texts[token];
  }

  ids(sequence, from, to) {
    const found = [];
    for (let at = from; at < to; at++) found.push(this.tokens.ids[sequence.tokens[at]]);
    return found;
  }

  // Text of a sequence for searching and the place in it where each token begins. Tokens that are no text by
  // themselves are put together first.
  joined(sequence) {
    const starts = new Int32Array(sequence.length + 1);
    let text = "";
    let at = 0;
    while (at < sequence.length) {
      let end = at;
      let hex = "";
      while (end < sequence.length && sequence.tokens[end] in this.tokens.raw) hex += this.tokens.raw[sequence.tokens[end++]];
      starts[at] = text.length;
      if (end === at) {
        text += this.text(sequence.tokens[at++]);
        continue;
      }
      for (let inside = at; inside < end; inside++) starts[inside] = text.length;
      text += new TextDecoder().decode(Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16)));
      at = end;
    }
    starts[sequence.length] = text.length;
    return { text, starts };
  }
}

// Tokens in a row, and where each is stored. `first` is the place of the first in the turn's prompt.
export class Sequence {
  constructor(parts, first) {
    this.parts = parts;
    this.first = first;
    this.length = parts.reduce((sum, part) => sum + part.length, 0);
    this.tokens = new Int32Array(this.length);
    this.partOf = new Int32Array(this.length);
    this.partStart = [];
    let at = 0;
    parts.forEach((part, index) => {
      this.partStart.push(at);
      const source = part.sampled ? part.turn.sampled : part.turn.delta;
      for (let i = 0; i < part.length; i++) {
        this.tokens[at + i] = source[i];
        this.partOf[at + i] = index;
      }
      at += part.length;
    });
  }

  // { turn, sampled, offset } of a token; offset counts in what the turn sampled or added.
  at(index) {
    const part = this.partOf[index];
    return { turn: this.parts[part].turn, sampled: this.parts[part].sampled, offset: index - this.partStart[part] };
  }
}
