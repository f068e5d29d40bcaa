// A rollout's trace. The viewer's page is fetched with the key and then takes this one's place; it is a page of its
// own, under the same address, so that it can be loaded again.

import { useEffect, useState } from "preact/hooks";
import { forget, remember, takeKey } from "./key";
import { KeyForm } from "./keyform";

export function TracePage({ rollout }: { rollout: string }) {
  const [key, setKey] = useState(takeKey);
  const [problem, setProblem] = useState("");
  const [refused, setRefused] = useState(false);
  useEffect(() => {
    document.title = `${rollout} - drivetrain trace`;
    if (!key) return;
    const stop = new AbortController();
    void load(rollout, key, stop.signal).then((outcome) => {
      if (stop.signal.aborted) return;
      if (outcome === "refused") {
        forget();
        setRefused(true);
        setKey("");
      } else if (outcome) setProblem(outcome);
    });
    return () => stop.abort();
  }, [key, rollout]);
  if (!key) {
    return <KeyForm refused={refused} give={(given) => (remember(given), setRefused(false), setKey(given))} />;
  }
  return (
    <main class="gate">
      <h1>{rollout}</h1>
      {problem ? <p class="alarm" role="alert">{problem}</p> : <p class="quiet" role="status">Reading its turns …</p>}
      <p><a href="/dashboard">All rollouts</a></p>
    </main>
  );
}

async function load(rollout: string, key: string, signal: AbortSignal): Promise<string> {
  try {
    const headers = { Authorization: `Bearer ${key}` };
    const response = await fetch(`/admin/traces/${encodeURIComponent(rollout)}`, { headers, signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) return "refused";
    if (!response.ok) return await told(response);
    const page = await response.text();
    document.open();
    document.write(page);
    document.close();
    return "";
  } catch (error) {
    return `The server does not answer (${error instanceof Error ? error.message : "unknown"}).`;
  }
}

async function told(response: Response): Promise<string> {
  try {
    const body = (await response.json()) as { error?: { message?: string } };
    return body.error?.message ?? `The server answers ${response.status}.`;
  } catch {
    return `The server answers ${response.status}.`;
  }
}
