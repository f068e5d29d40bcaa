"""``drivetrain trace``: look at what a run recorded, and check it."""

from __future__ import annotations

from pathlib import Path

import typer
from rich.table import Table

from drivetrain.cli import why
from drivetrain.cli.console import out, print_json
from drivetrain.cli.export import export
from drivetrain.cli.rollout import results_table
from drivetrain.cli.runs import find_session, run_sessions, run_tokenizer
from drivetrain.cli.trace_show import shown
from drivetrain.cli.trace_view import view
from drivetrain.gateway.sessions import session_tag
from drivetrain.journal.reader import JournalReader
from drivetrain.rollout.audit import audit_run
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.trace.turn import Turn

app = typer.Typer(no_args_is_help=True, help="Traces: what was sent, what was sampled, what is trained.")
_RUN = typer.Argument(help="Run folder that `drivetrain rollout` wrote.")
_JSON = typer.Option(False, "--json", help="Print as JSON.")
why.register(app)
app.command("export")(export)
app.command("view")(view)


@app.command("ls")
def ls(run_dir: Path = _RUN, json_output: bool = _JSON) -> None:
    """List the rollouts of a run.

    Example: drivetrain trace ls runs/first
    """
    results = RunDir.open(run_dir).results()
    if json_output:
        print_json([{"rollout": r.rollout_id, "session": r.session_id, "status": r.status, "reward": r.reward,
                     "turns": r.turns, "rows": len(r.rows), "forks": r.fork_reasons} for r in results])  # fmt: skip
        return
    out.print(results_table(results))


@app.command("show")
def show(
    run_dir: Path = _RUN,
    which: str = typer.Argument(help="Rollout id or session id; the beginning is enough."),
    text: bool = typer.Option(False, "--text", help="Print what each turn was told and what it said."),
    json_output: bool = _JSON,
) -> None:
    """Show the turns of one rollout: how each continues, its tokens, its fork reason.

    Example: drivetrain trace show runs/first pypi__xmltodict-0.14.2.pi.0 --text
    """
    run = RunDir.open(run_dir)
    reader = JournalReader(run.journal)
    session = find_session(run_sessions(run, reader), which)
    graph = reader.graph(session.id, session_tag(session.id))
    if json_output:
        labels = Selection.read(run).labels(graph, session.labels.get("agent", ""))
        print_json(shown(run, session, list(graph), labels, reader.events(session.id), text=text))
        return
    out.print(f"{session.labels.get('rollout', '')}  session {session.id}  {session.state}", markup=False)
    table = Table("turn", "parent", "link", "prompt", "new", "sampled", "finish", "label", "policy", "seconds", "notes")
    labels = Selection.read(run).labels(graph, session.labels.get("agent", ""))
    for turn in graph:
        fork = f"{turn.fork_reason}: {turn.fork_detail}" if turn.fork_reason else ""
        label = labels[turn.id]
        notes = [
            fork,
            "" if label.label == "agent" else label.reason,
            *turn.notes,
            "" if turn.delivered else "undelivered",
        ]
        table.add_row(
            str(turn.id),
            "-" if turn.parent is None else str(turn.parent),
            turn.link,
            str(turn.prompt_len),
            str(len(turn.delta_ids)),
            str(len(turn.sampled_ids)),
            turn.finish_reason,
            label.label,
            _span(turn),
            f"{turn.completed_at - turn.started_at:.2f}",
            "; ".join(note for note in notes if note),
        )
    out.print(table)
    for event in reader.events(session.id):
        out.print(f"event {event.kind}: {event.detail}", markup=False)
    if text:
        _print_text(run, list(graph))


@app.command("check")
def check(run_dir: Path = _RUN, json_output: bool = _JSON) -> None:
    """Derive every row again from the journal and compare it with the stored one.

    Proves for each rollout: each prompt that was sent = stored ids + stored sampled ids + delta; ids, mask and
    log-probs have equal length; each trainable token is trained exactly once. Exits with 1 when anything is off.

    Example: drivetrain trace check runs/first
    """
    run = RunDir.open(run_dir)
    tokenizer = run_tokenizer(run)
    audits = audit_run(run, vocab_size=tokenizer.vocab_size if tokenizer else None)
    bad = [audit for audit in audits if audit.problems]
    if json_output:
        print_json(audits)
    else:
        for audit in bad:
            for problem in audit.problems:
                out.print(f"{audit.rollout_id}: {problem}", markup=False)
        turns, rows = sum(a.turns for a in audits), sum(a.rows for a in audits)
        tokens = sum(a.trained_tokens for a in audits)
        verdict = f"{len(bad)} of them broken" if bad else "all sound"
        out.print(f"{len(audits)} rollouts, {turns} turns, {rows} rows, {tokens} trained tokens: {verdict}")
    if bad:
        raise typer.Exit(1)


def _span(turn: Turn) -> str:
    start, end = turn.policy_version_start, turn.policy_version_end
    return str(start) if start == end else f"{start}-{end}"


def _print_text(run: RunDir, turns: list[Turn]) -> None:
    tokenizer = run_tokenizer(run)
    for turn in turns:
        out.rule(f"turn {turn.id}")
        for message in turn.messages:
            out.print(f"[{message.role}] {message.content}", markup=False, highlight=False)
        said = tokenizer.decode(turn.sampled_ids.tolist()) if tokenizer else turn.reply.content
        out.print(f"[sampled] {said}", markup=False, highlight=False, style="bold")
