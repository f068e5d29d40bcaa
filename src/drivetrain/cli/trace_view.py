"""``drivetrain trace view``: a rollout as one page, to read what was sent, sampled, trained and graded."""

from __future__ import annotations

import re
import webbrowser
from pathlib import Path

import msgspec
import typer

from drivetrain.cli.console import out, print_json, tell
from drivetrain.cli.runs import run_tokenizer
from drivetrain.errors import ConfigError
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.trace.export.files import check_free, written_whole
from drivetrain.viewer.find import Target, find_rollouts
from drivetrain.viewer.load import load_document
from drivetrain.viewer.page import render_page


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """One page that was written; ``size`` in bytes."""

    rollout: str
    file: str
    size: int
    turns: int
    rows: int
    trained_tokens: int


def view(
    where: str = typer.Argument(
        metavar="RUN|ROLLOUT",
        help="Run folder; or a rollout: RUN/rollouts/ID, or its id alone, looked for in the newest run of ./runs.",
    ),
    which: str | None = typer.Argument(
        None, metavar="[ROLLOUT]", help="With RUN: rollout id or session id; the beginning is enough."
    ),
    target: Path | None = typer.Option(
        None, "--out", "-o", help="File to write, or a folder for it. Default: RUN/views/ROLLOUT.html."
    ),
    every: bool = typer.Option(False, "--all", help="Write one page for every rollout of RUN."),
    show: bool = typer.Option(False, "--open", help="Open the page in the browser."),
    force: bool = typer.Option(False, "--force", help="With --out: overwrite a file that exists."),
    json_output: bool = typer.Option(False, "--json", help="Say what was written as JSON."),
) -> None:
    """Write a rollout as one HTML file: every turn, message and token, what is trained and why the rest is not.

    The file holds everything it shows. It needs no server and no network, also not later: copy it, mail it, attach it
    to an issue. What the agent read and wrote is in it, so look before you share it.

    It shows the turn graph with every fork and its reason, messages beside tokens (trained, context, masked with the
    reason), log-probs as heat, where the time of each call went, the tests' verdicts, the patch, the exported rows,
    findings and provenance. Keys: j and k go from turn to turn, / searches, ? lists the rest.

    Also works while the rollout is still going on; write the page again to see more.

    Examples:

      drivetrain trace view runs/20261130-221302 --all

      drivetrain trace view runs/20261130-221302 pypi__xmltodict-0.14.2.pi.0 --open

      drivetrain trace view pypi__xmltodict-0.14.2.pi.0 --out look.html
    """
    targets = find_rollouts(where, which, runs=Path("runs"))
    if len(targets) != 1 and not every:
        names = ", ".join(each.rollout_id for each in targets[:8])
        raise ConfigError(
            f"{where} holds {len(targets)} rollouts.", fix=f"Name one ({names}) or write a page of each with --all."
        )
    tokenizer = run_tokenizer(targets[0].run)
    if tokenizer is None:
        tell("the run's tokenizer is not there any more: tokens are shown as ids.")
    if which is None and not Path(where).is_dir():
        tell(f"found in {targets[0].run.path}")
    files = [_file(each, target, folder=every) for each in targets]
    if target is not None:
        check_free(files, force=force)
    written = [_write(each, file, tokenizer) for each, file in zip(targets, files, strict=True)]
    if json_output:
        print_json(written)
    else:
        for page in written:
            size = f"{page.size / 1e6:.1f} MB"
            said = f"{page.file}: {page.turns} turns, {page.rows} rows, {page.trained_tokens} trained tokens, {size}"
            out.print(said, markup=False, highlight=False, soft_wrap=True)
    if show and not webbrowser.open(files[0].resolve().as_uri()):
        raise ConfigError("no browser could be started.", fix=f"Open {files[0].resolve()} yourself.")


def _file(rollout: Target, target: Path | None, *, folder: bool) -> Path:
    name = (re.sub(r"[^\w.+-]+", "_", rollout.rollout_id).lstrip(".") or "rollout") + ".html"
    if target is None:
        return rollout.run.path / "views" / name
    if folder and target.exists() and not target.is_dir():
        raise ConfigError(f"{target} is a file, and --all writes several.", fix="Name a folder with --out.")
    return target / name if folder or target.is_dir() else target


def _write(rollout: Target, file: Path, tokenizer: Tokenizer | None) -> Written:
    document = load_document(rollout.run, rollout.rollout_id, tokenizer)
    page = render_page(document)
    with written_whole(file) as temporary:
        temporary.write_bytes(page)
    return Written(
        rollout=document.rollout_id,
        file=str(file),
        size=len(page),
        turns=len(document.turns),
        rows=len(document.rows),
        trained_tokens=document.trained_tokens,
    )
