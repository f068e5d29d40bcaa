// The turn graph as lanes: a chain keeps its lane, a fork or a new conversation opens one, an ended chain frees it.

export const MOST_LANES = 8;

// For each turn: { lane, from, forkFrom, passing } - its lane, the lane of its parent and of the chain it forked from
// (null: none), and the lanes that run through its line.
export function assignLanes(trace) {
  const lastUse = lastUses(trace);
  const laneOf = new Map();
  const busy = []; // turn whose chain holds a lane, or null
  return trace.turns.map((turn, index) => {
    const parent = turn.parent;
    const near = turn.fork_reason ? trace.forkOf.get(turn.id)?.nearest ?? null : null;
    const goesOn = parent !== null && busy[laneOf.get(parent)] === parent;
    let lane = goesOn ? laneOf.get(parent) : busy.findIndex((holder) => !held(holder));
    if (lane < 0) lane = busy.length;
    const passing = busy.flatMap((holder, at) => (held(holder) && at !== lane && lastUse.get(holder) > index ? [at] : []));
    laneOf.set(turn.id, lane);
    busy[lane] = turn.id;
    busy.forEach((holder, at) => {
      if (held(holder) && lastUse.get(holder) <= index) busy[at] = null;
    });
    return {
      lane,
      from: parent === null ? null : laneOf.get(parent),
      forkFrom: near === null || near === parent ? null : laneOf.get(near) ?? null,
      passing,
      ends: busy[lane] === null,
    };
  });
}

function held(holder) {
  return holder !== null && holder !== undefined;
}

// The last line at which something goes on from a turn.
function lastUses(trace) {
  const last = new Map(trace.turns.map((turn, index) => [turn.id, index]));
  trace.turns.forEach((turn, index) => {
    const near = trace.forkOf.get(turn.id)?.nearest;
    for (const id of [turn.parent, near]) if (id !== null && last.has(id)) last.set(id, index);
  });
  return last;
}
