import { useState } from "preact/hooks";

export function KeyForm({ refused, give }: { refused: boolean; give: (key: string) => void }) {
  const [key, setKey] = useState("");
  return (
    <main class="gate">
      <h1>drivetrain</h1>
      <form onSubmit={(event) => (event.preventDefault(), key.trim() && give(key.trim()))}>
        <label for="key">Key of the admin surface</label>
        <input
          id="key"
          type="password"
          autocomplete="off"
          spellcheck={false}
          value={key}
          aria-invalid={refused}
          aria-describedby="key-help"
          onInput={(event) => setKey(event.currentTarget.value)}
        />
        <button type="submit">Open</button>
      </form>
      {refused && <p class="alarm" role="alert">This key is not known here. A run that was started again has a new one.</p>}
      <p class="quiet" id="key-help">
        It is in the address that <code>drivetrain rollout --dashboard</code> and <code>drivetrain dashboard</code>{" "}
        print, and beside the journal of <code>drivetrain serve</code> (<code>admin.key</code>). It stays in this tab
        and is sent to this server only.
      </p>
    </main>
  );
}
