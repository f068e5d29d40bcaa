// What must not be missed: one line each, above everything else.

import { clock } from "./format";
import type { Run, Summary } from "./model";
import type { Link } from "./stream";

export function Notices({ run, summary, link }: { run: Run | null; summary: Summary; link: Link }) {
  const fence = summary.fence;
  return (
    <div class="notices" aria-live="polite">
      {link.at === "lost" && (
        <p class="notice bad">
          <b>No connection.</b> {run ? `What you see is from ${clock(link.since / 1000)}. ` : ""}Trying again ({link.why}).
          {run?.kind === "rollout" && <> If the run has ended: <code>drivetrain dashboard {run.path}</code></>}
        </p>
      )}
      {link.at === "outdated" && <p class="notice bad"><b>The server was updated.</b> Load this page again.</p>}
      {link.at === "ended" && (
        <p class="notice">
          <b>The server has stopped.</b> This is its last state.
          {run?.path && <> To come back to it: <code>drivetrain dashboard {run.path}</code></>}
        </p>
      )}
      {fence?.failed && <p class="notice bad"><b>The weight-sync gate failed:</b> {fence.failed}</p>}
      {summary.journal_blocked && <p class="notice bad"><b>The journal takes nothing:</b> {summary.journal_blocked}</p>}
      {summary.stopping && link.at === "live" && <p class="notice"><b>The gateway is stopping:</b> calls that run may finish, new ones are refused.</p>}
    </div>
  );
}
