// What a token is, as a class, in words, and as heat.

const HEAT = [-0.05, -0.25, -0.7, -1.5, -3, -6];

// In the view of `turn`: context, earlier (sampled by another turn), trained or masked.
export function kindOf(trace, turn, place) {
  if (!place.sampled) return { kind: "context" };
  const state = trace.state(place.turn, place.offset);
  return place.turn === turn ? state : { ...state, kind: "earlier", was: state.kind };
}

export function kindInWords(turn, place, state) {
  if (state.kind === "context") return place.turn === turn ? "context: added by this prompt" : "context: from an earlier prompt";
  const fate = state.reason === undefined ? `trained in row ${state.row}` : `not trained: ${state.reason}`;
  return state.kind === "earlier" ? `context: sampled in turn ${place.turn.id}, ${fate}` : `sampled, ${fate}`;
}

// 0 (expected) to 6 (surprising); null without a log-prob.
export function heatOf(logprob) {
  if (logprob === null || logprob === undefined) return null;
  const level = HEAT.findIndex((limit) => logprob >= limit);
  return level < 0 ? HEAT.length : level;
}

export function logprobAt(place) {
  return place.sampled ? place.turn.logprobs[place.offset] : undefined;
}
