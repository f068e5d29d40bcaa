import { clock } from "./format";
import type { Run, Summary } from "./model";
import type { Link } from "./stream";
import type { Theme } from "./theme";

interface Props {
  run: Run | null;
  summary: Summary;
  link: Link;
  theme: Theme;
  turnTheme: () => void;
  openHelp: () => void;
}

export function Header({ run, summary, link, theme, turnTheme, openHelp }: Props) {
  const fence = summary.fence;
  const about = [run?.model, run?.engine, fence && `policy ${fence.policy_version}`].filter(Boolean);
  return (
    <header class="top">
      <div>
        <h1>{run?.name ?? "drivetrain"}</h1>
        <p class="headline">
          {about.join(" · ")}
          {fence && fence.state !== "open" && <span class="badge bad">gate {fence.state}{fence.owner && ` by ${fence.owner}`}</span>}
        </p>
      </div>
      <div class="tools">
        <Connection run={run} summary={summary} link={link} />
        <button type="button" id="theme" title="t" onClick={turnTheme}>Theme: {theme}</button>
        <button type="button" title="?" onClick={openHelp}>Keys</button>
      </div>
    </header>
  );
}

function Connection({ run, summary, link }: { run: Run | null; summary: Summary; link: Link }) {
  const [kind, text] = said(run, summary, link);
  return <span class="connection" role="status" data-kind={kind}><i aria-hidden="true" />{text}</span>;
}

function said(run: Run | null, summary: Summary, link: Link): [string, string] {
  if (link.at === "connecting") return ["wait", "connecting"];
  if (link.at === "lost") return ["lost", `no connection since ${clock(link.since / 1000)}`];
  if (link.at === "ended") return ["still", "ended"];
  if (link.at === "outdated") return ["lost", "another version"];
  if (summary.finished) return ["still", "finished"];
  if (run && run.live === false) return ["still", "not running"];
  return ["live", "live"];
}
