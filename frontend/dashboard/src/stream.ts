// Server-sent events over fetch: EventSource cannot send a key as a header, and a key is never part of an address.

import { type Message, VERSION } from "./model";

export type Link =
  | { at: "connecting" }
  | { at: "live" }
  | { at: "lost"; since: number; why: string }
  | { at: "ended" }
  | { at: "refused" }
  | { at: "outdated" };

const SILENCE_MS = 30_000; // the server says something every ten seconds
const WAITS_MS = [500, 1000, 2000, 5000];

interface Told {
  link(link: Link): void;
  message(message: Message, snapshot: boolean): void;
}

export function follow(key: string, told: Told): () => void {
  const stop = new AbortController();
  void run(key, told, stop.signal);
  return () => stop.abort();
}

async function run(key: string, told: Told, stop: AbortSignal): Promise<void> {
  let lastId = "";
  let failures = 0;
  let since = 0;
  told.link({ at: "connecting" });
  while (!stop.aborted) {
    let why = "the connection was closed";
    try {
      const outcome = await once();
      if (outcome !== "closed") return told.link({ at: outcome });
    } catch (error) {
      why = error instanceof Error && error.name !== "AbortError" ? error.message : "the server does not answer";
    }
    if (stop.aborted) return;
    since ||= Date.now();
    told.link({ at: "lost", since, why });
    await pause(WAITS_MS[Math.min(failures++, WAITS_MS.length - 1)] ?? 5000, stop);
  }

  async function once(): Promise<"closed" | "refused" | "ended" | "outdated"> {
    const silence = new AbortController();
    const signal = AbortSignal.any([stop, silence.signal]);
    let timer = setTimeout(() => silence.abort(), SILENCE_MS);
    try {
      const headers: Record<string, string> = { Authorization: `Bearer ${key}`, Accept: "text/event-stream" };
      if (lastId) headers["Last-Event-ID"] = lastId;
      const response = await fetch("/admin/events", { headers, signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) return "refused";
      if (!response.ok || !response.body) throw new Error(`the server answers ${response.status}`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "closed";
        clearTimeout(timer);
        timer = setTimeout(() => silence.abort(), SILENCE_MS);
        if (since || failures || !lastId) told.link({ at: "live" });
        failures = since = 0;
        const blocks = (rest + value).split("\n\n");
        rest = blocks.pop() ?? "";
        for (const block of blocks) {
          const fields = read(block);
          if (fields.event === "end") return "ended";
          if (fields.event !== "snapshot" && fields.event !== "delta") continue;
          const message = JSON.parse(fields.data ?? "{}") as Message;
          if ((message.version ?? VERSION) !== VERSION) return "outdated";
          told.message(message, fields.event === "snapshot");
          lastId = fields.id ?? lastId;
        }
      }
    } finally {
      clearTimeout(timer);
    }
  }
}

function read(block: string): Record<string, string> {
  const fields: Record<string, string> = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 1).replace(/^ /, "");
  }
  return fields;
}

function pause(ms: number, stop: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    stop.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}
