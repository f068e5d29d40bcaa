// Why a turn left the nearest stored chain: the message and the token at which they part.

import { badge, button, el } from "./dom.js";
import { count } from "./numbers.js";
import { visibleNodes } from "./visible.js";

const SHARED_SHOWN = 12;
const DIFFERENT_SHOWN = 80;

export function forkBox(app, turn) {
  const fork = app.trace.forkOf.get(turn.id);
  if (!fork) return null;
  const body = el("div", { class: "fork-body" });
  const details = el(
    "details", { class: "fork-box", id: "fork" },
    el(
      "summary", {},
      badge(fork.reason.replaceAll("_", " "), "fork"), " ",
      fork.drift ? badge(`${fork.drift} drift`, "drift") : null, fork.drift ? " " : null,
      `Fork: ${fork.detail}`,
    ),
    body,
  );
  details.addEventListener("toggle", () => {
    if (details.open && !body.childNodes.length) body.append(...contents(app, turn, fork));
  });
  return details;
}

function contents(app, turn, fork) {
  const near = app.trace.byId.get(fork.nearest);
  return [
    el(
      "p", {}, "The nearest chain that was stored before ends with ",
      button(`turn ${near.id}`, () => app.select(near), { class: "link" }),
      `. ${fork.shared_messages} of ${fork.messages_now} messages are the same, and ` +
        `${count(fork.shared_tokens)} of ${count(fork.prompt_tokens)} prompt tokens.`,
    ),
    fork.tools.length ? el("p", {}, `Tools: ${fork.tools.join(" ")}`) : null,
    el(
      "div", { class: "fork-columns" },
      el("div", {}, el("h4", {}, "Messages"), messageDiff(fork)),
      el("div", {}, el("h4", {}, "Tokens"), ...tokenDiff(app.trace, near, turn, fork)),
    ),
  ].filter(Boolean);
}

function messageDiff(fork) {
  if (!fork.message_diff.length) return el("p", { class: "quiet" }, "Every message that both have is the same.");
  return diffLines(fork.message_diff, `Message ${fork.message}, before and now`);
}

// A unified diff, one element a line; the sign stays, so that colour is not all that tells.
export function diffLines(lines, label) {
  return el(
    "div", { class: "diff", tabindex: 0, role: "region", "aria-label": label },
    lines.map((line) => el("div", { class: `diff-line ${diffKind(line)}` }, visibleNodes(line))),
  );
}

export function diffKind(line) {
  if (line.startsWith("+++") || line.startsWith("---")) return "file";
  if (line.startsWith("@@")) return "hunk";
  return line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "same";
}

function tokenDiff(trace, near, turn, fork) {
  const before = trace.sequence(near, true);
  const now = trace.prompt(turn);
  const rest = (sequence) => Math.max(0, sequence.length - fork.shared_tokens);
  return [
    tokenRun(trace, before, fork, "removed", `before (turn ${near.id}), ${count(rest(before))} more`),
    tokenRun(trace, now, fork, "added", `now (turn ${turn.id}), ${count(rest(now))} more`),
  ];
}

function tokenRun(trace, sequence, fork, kind, label) {
  const shared = Math.max(0, fork.shared_tokens - SHARED_SHOWN);
  const end = Math.min(sequence.length, fork.shared_tokens + DIFFERENT_SHOWN);
  const run = el("div", { class: "token-run", tabindex: 0, role: "region", "aria-label": `Tokens ${label}` }, shared ? "… " : "");
  for (let at = shared; at < end; at++) {
    const token = sequence.tokens[at];
    const title = `id ${trace.tokens.ids[token]}, token ${at}`;
    run.append(el("span", { class: `token ${at < fork.shared_tokens ? "context" : kind}`, title }, visibleNodes(trace.text(token))));
  }
  run.append(end < sequence.length ? " …" : end === fork.shared_tokens ? " (ends here)" : "");
  return el("div", { class: "token-diff" }, el("div", { class: "quiet" }, label), run);
}
