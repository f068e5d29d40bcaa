// What is selected and switched on, and who wants to know.

export class App {
  constructor(trace) {
    this.trace = trace;
    this.turn = trace.turns[0] ?? null;
    this.heat = false;
    this.whole = false;
    this.tab = trace.turns.length ? "turns" : "tests";
    this.hit = null;
    this.status = () => {};
    this.listeners = [];
  }

  // `listener(changed)` is called with what changed: "turn", "view", "tab" or "hit".
  listen(listener) {
    this.listeners.push(listener);
  }

  tell(changed) {
    for (const listener of this.listeners) listener(changed);
  }

  select(turn) {
    if (!turn) return;
    const other = turn !== this.turn;
    this.turn = turn;
    this.hit = null;
    this.show("turns");
    if (other) this.tell("turn");
  }

  selectId(id) {
    this.select(this.trace.byId.get(id));
  }

  step(by) {
    if (!this.turn) return;
    const last = this.trace.turns.length - 1;
    this.select(this.trace.turns[Math.min(last, Math.max(0, this.trace.place.get(this.turn.id) + by))]);
  }

  // The next fork behind the selected turn, else the first.
  nextFork() {
    const forks = this.trace.forks;
    if (!forks.length) return this.status("no fork in this rollout");
    const here = this.turn ? this.trace.place.get(this.turn.id) : -1;
    const next = forks.find((fork) => this.trace.place.get(fork.turn) > here) ?? forks[0];
    this.selectId(next.turn);
  }

  show(tab) {
    if (tab === this.tab) return;
    this.tab = tab;
    this.tell("tab");
  }

  toggle(option) {
    this[option] = !this[option];
    this.tell("view");
  }

  go(hit) {
    this.select(hit.turn);
    this.hit = hit;
    this.tell("hit");
  }
}
