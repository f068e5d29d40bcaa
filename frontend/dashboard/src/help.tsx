import type { RefObject } from "preact";

const KEYS: [string, string][] = [
  ["↑ ↓", "rollout before, after"],
  ["PgUp PgDn", "a page of rollouts"],
  ["Home End", "the first, the last"],
  ["Enter", "open its trace"],
  ["/", "filter by name"],
  ["Esc", "leave the filter"],
  ["t", "light, dark, as the system says"],
  ["?", "this list"],
];

export function HelpDialog({ dialog }: { dialog: RefObject<HTMLDialogElement> }) {
  return (
    <dialog ref={dialog} id="help" aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        {KEYS.map(([key, text]) => <div key={key}><dt><kbd>{key}</kbd></dt><dd>{text}</dd></div>)}
      </dl>
      <p class="quiet">Columns sort when their heading is pressed. A colour always means the same as in the trace viewer.</p>
      <button type="button" onClick={() => dialog.current?.close()}>Close</button>
    </dialog>
  );
}
