"""Parser ``tap_blocks_per_file``: tape's output, one block per test, one file per process.

The suite's loop prints ``### FILE <path>`` and ``### EXIT <code>`` around each file; the grader puts a nonce into
these markers so that a line printed by the code under test cannot open or close a file.
"""

from __future__ import annotations

import re

from swe_rl_env.grading.verdicts import Verdict, worst

_RESULT = re.compile(r"(not )?ok\b")
_PLAN = re.compile(r"1\.\.\d+\s*$")


def mark_command(command: str, nonce: str) -> str:
    """The suite's command with the nonce in its file markers."""
    return command.replace('"### ', f'"### {nonce} ')


def parse_tap(text: str, nonce: str = "") -> tuple[dict[str, Verdict], bool]:
    """Read a marked log.

    A ``# title`` comment opens a block; ``ok`` / ``not ok`` lines belong to it until the plan line. A block without
    assertions is SKIPPED when its title starts with SKIP, else MISSING. A file that reports no exit contributes
    nothing, and a title seen twice keeps its worst verdict.

    Returns:
        id (``<file> > <title>``) -> verdict, and whether every file that was opened reported its exit.
    """
    lead = f"### {nonce} " if nonce else "### "
    verdicts: dict[str, Verdict] = {}
    current: str | None = None
    blocks: list[tuple[str, list[bool]]] = []
    complete = True
    open_block = False
    for line in text.splitlines():
        if line.startswith(lead + "FILE "):
            complete = complete and current is None
            current, blocks, open_block = line[len(lead) + 5 :], [], False
        elif line.startswith(lead + "EXIT "):
            for title, results in blocks:
                test_id = f"{current} > {title}"
                verdicts[test_id] = worst(verdicts.get(test_id), _verdict(title, results))
            current, blocks = None, []
        elif current is None:
            continue
        elif _PLAN.match(line):
            open_block = False
        elif line.startswith("# "):
            blocks.append((line[2:].strip(), []))
            open_block = True
        elif open_block and (match := _RESULT.match(line)):
            blocks[-1][1].append(match.group(1) is None)
    return verdicts, complete and current is None


def _verdict(title: str, results: list[bool]) -> Verdict:
    if results:
        return "PASSED" if all(results) else "FAILED"
    return "SKIPPED" if title.startswith("SKIP") else "MISSING"
