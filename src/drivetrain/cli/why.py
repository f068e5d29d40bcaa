"""``drivetrain trace why-forked`` and ``trace stats``: where chains break, and what it costs."""

from __future__ import annotations

from pathlib import Path

import msgspec
import typer
from rich.table import Table

from drivetrain.cli.console import out, print_json
from drivetrain.cli.runs import find_session, run_sessions, run_tokenizer
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader, StoredSession
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.trace.stats import TraceStats, stats_of, total
from drivetrain.trace.why import Fork, explain_forks

_RUN = typer.Argument(metavar="RUN", help="Run folder that `drivetrain rollout` wrote.")
_JSON = typer.Option(False, "--json", help="Print as JSON.")


def register(app: typer.Typer) -> None:
    """Add both commands."""
    app.command("why-forked")(why_forked)
    app.command("stats")(stats)


def why_forked(
    run_dir: Path = _RUN,
    which: str | None = typer.Argument(None, metavar="[ROLLOUT]", help="Rollout or session id; default: all of them."),
    json_output: bool = _JSON,
) -> None:
    """Show for each fork the message and the tokens at which it left the nearest stored chain.

    hard drift: special tokens, tools or text that is not the assistant's differ. soft drift: assistant text only.

    Example: drivetrain trace why-forked runs/first
    """
    run = RunDir.open(run_dir)
    reader = JournalReader(run.journal)
    sessions = run_sessions(run, reader)
    chosen = sessions if which is None else [find_session(sessions, which)]
    tokenizer = run_tokenizer(run)
    special = tokenizer.special_tokens.values() if tokenizer else ()
    found = {
        _name(session): explain_forks(reader.graph(session.id, session_tag(session.id)), tokenizer, special=special)
        for session in chosen
    }
    if json_output:
        print_json({name: msgspec.to_builtins(forks) for name, forks in found.items()})
        return
    for name, forks in found.items():
        out.print(f"{name}: {len(forks)} forks", markup=False, highlight=False)
        for fork in forks:
            _print_fork(fork)


def stats(run_dir: Path = _RUN, json_output: bool = _JSON) -> None:
    """Count rows, extended prompts, repeated context, drift and what is not trained, per rollout and in all.

    prefix match: the share of requests that go on from an earlier turn and begin with its prompt and sampled tokens,
    verbatim. repeated: context tokens that several rows of a rollout hold.

    Example: drivetrain trace stats runs/first --json
    """
    run = RunDir.open(run_dir)
    reader = JournalReader(run.journal)
    selection = Selection.read(run)
    tokenizer = run_tokenizer(run)
    special = tokenizer.special_tokens.values() if tokenizer else ()
    rollouts: dict[str, TraceStats] = {}
    for session in run_sessions(run, reader):
        graph, agent = reader.graph(session.id, session_tag(session.id)), session.labels.get("agent", "")
        rows = selection.rows(graph, agent, reward=None, session_id=session.id)
        labels, sampled = selection.labels(graph, agent), selection.sampled(graph, agent)
        rollouts[_name(session)] = stats_of(graph, rows, labels, sampled, special=special)
    everything = total(rollouts.values())
    if json_output:
        parts = {name: part.as_dict() for name, part in rollouts.items()}
        print_json({"rollouts": parts, "total": everything.as_dict(), "train_labels": selection.train_labels})
        return
    table = Table("rollout", "turns", "rows", "prefix match", "repeated", "drift", "forks", "labels", "not trained")
    for name, part in [*rollouts.items(), ("all", everything)]:
        rate = part.prefix_match_rate
        table.add_row(
            name,
            str(part.turns),
            str(part.rows),
            "-" if rate is None else f"{rate:.1%} of {part.transitions}",
            str(part.duplicated_tokens),
            f"{part.hard_drift} hard, {part.soft_drift} soft, {part.soft_mismatches} tolerated",
            _counts(part.forks),
            _counts(part.labels),
            ", ".join(f"{reason} {share:.1%}" for reason, share in sorted(part.masked_fraction.items())) or "-",
        )
    out.print(table)
    out.print(f"{everything.rows_per_rollout:.2f} rows per rollout, {everything.sampled.get('', 0)} trained tokens")


def _print_fork(fork: Fork) -> None:
    drift = f", {fork.drift} drift" if fork.drift else ""
    lines = [
        f"turn {fork.turn}: {fork.reason}{drift}: {fork.detail}",
        f"  nearest chain ends with turn {fork.nearest}; "
        f"{fork.shared_messages} of {fork.messages_now} messages are the same",
    ]
    if fork.tools:
        lines.append(f"  tools: {' '.join(fork.tools)}")
    if fork.message is not None:
        lines.append(f"  message {fork.message}: {fork.role_before} before, {fork.role_now} now")
    lines += [f"    {line}" for line in fork.message_diff]
    lines.append(f"  {fork.shared_tokens} of {fork.prompt_tokens} prompt tokens are the same; then")
    lines += [f"    before: {_spelled(fork.tokens_before)}", f"    now:    {_spelled(fork.tokens_now)}"]
    out.print("\n".join(lines), markup=False, highlight=False)


def _spelled(pieces: list[str]) -> str:
    return " ".join(repr(piece) for piece in pieces) or "(end)"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} x{count}" for name, count in sorted(counts.items())) or "-"


def _name(session: StoredSession) -> str:
    return session.labels.get("rollout", session.id)
