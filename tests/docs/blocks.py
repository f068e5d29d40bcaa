"""The code blocks of README and docs, and the markers in front of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
SHELL = ("console", "sh", "bash")
CHECKED = (*SHELL, "python", "toml", "yaml")
PROSE = ("text", "json", "jinja", "diff", "html")
_FENCE = re.compile(
    r"(?:<!-- (?P<kind>not run|example|run with): (?P<reason>[^\n]*?) -->\n+)?"
    r"^```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(msgspec.Struct, frozen=True):
    """A fenced block.

    ``reason`` says why it is not run here, ``example`` which test runs it instead, ``needs`` what it is run with: a
    key of :data:`tests.docs.test_blocks.PROVIDED`.
    """

    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    example: str = ""
    needs: str = ""

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for found in _FENCE.finditer(text):
            said = {"not run": "reason", "example": "example", "run with": "needs"}.get(found["kind"] or "")
            line = text.count("\n", 0, found.start("language")) + 1
            marks = {said: found["reason"]} if said else {}
            yield Block(str(page.relative_to(ROOT)), line, found["language"], found["text"], **marks)


def commands(block: Block) -> list[list[str]]:
    """The commands of a shell block, each as words: program and arguments. Assignments in front are left out."""
    joined = block.text.replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        line = re.sub(r"^\s*(?:[A-Z_]+=\S+ )?[A-Z_]+=\$\(.*\) ", "", line.removeprefix("$ "))
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words = words[1:]
        if words:
            found.append(words)
    return found


def inline_commands() -> Iterator[tuple[str, str]]:
    """Page and text of every `drivetrain ...` in running text."""
    for page in PAGES:
        text = _FENCE.sub("", page.read_text(encoding="utf-8"))
        for found in re.finditer(r"`(drivetrain [a-z][^`]*)`", text):
            yield str(page.relative_to(ROOT)), " ".join(found[1].split())
