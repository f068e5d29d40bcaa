"""Planted tests: proof that failing still fails and passing still passes in the run that is graded.

Whoever rewrites outcomes from inside the run (a hook, a patched report class, an early exit with forged lines)
cannot know the names, which are drawn per run: the canary then comes back wrong or not at all.
"""

from __future__ import annotations

import posixpath
import secrets
from collections.abc import Mapping
from typing import Literal

import msgspec

from swe_rl_env.building.build import BuiltTask
from swe_rl_env.grading.verdicts import Verdict

CanaryState = Literal["as_planted", "altered", "missing", "not_run"]


class Canary(msgspec.Struct, frozen=True, kw_only=True):
    """Files to add, text to append to existing files, and what their tests must report."""

    files: Mapping[str, bytes]
    appended: Mapping[str, bytes]
    expected: Mapping[str, Verdict]

    def check(self, verdicts: Mapping[str, Verdict]) -> CanaryState:
        """Compare a run's verdicts with what was planted."""
        seen = {i: verdicts[i] for i in self.expected if i in verdicts}
        if any(verdict != self.expected[i] for i, verdict in seen.items()):
            return "altered"
        return "as_planted" if len(seen) == len(self.expected) else "missing"


def plant(built: BuiltTask) -> Canary:
    """A fresh canary for one run of the task's suite."""
    token = secrets.token_hex(6)
    if built.task.install.log_parser == "tap_blocks_per_file":
        return _tap(built, token)
    return _pytest(built, token)


def _pytest(built: BuiltTask, token: str) -> Canary:
    f2p_files = sorted({i.split("::", 1)[0] for i in built.task.private.fail_to_pass})
    path = posixpath.join(posixpath.dirname(f2p_files[0]), f"test_{token}.py")
    text = (
        "import pytest\n\n\n"
        f"def test_{token}_a():\n    assert [] == [0]\n\n\n"
        f'@pytest.mark.parametrize("n", [0, 1])\ndef test_{token}_b(n):\n    assert n == 1\n'
    )
    # A second one inside the graded files, for a cheat that spares files it does not know.
    inline = f"\n\ndef test_{token}_c():\n    assert [] == [0]\n".encode()
    expected: dict[str, Verdict] = {
        f"{path}::test_{token}_a": "FAILED",
        f"{path}::test_{token}_b[0]": "FAILED",
        f"{path}::test_{token}_b[1]": "PASSED",
        **{f"{f}::test_{token}_c": "FAILED" for f in f2p_files},
    }
    return Canary(files={path: text.encode()}, appended=dict.fromkeys(f2p_files, inline), expected=expected)


def _tap(built: BuiltTask, token: str) -> Canary:
    folder = posixpath.dirname(built.task.private.fail_to_pass[0].split(" > ", 1)[0])
    path = posixpath.join(folder, f"{token}.js")
    # Loads the project: without that, code in it that ends the process early would spare the canary.
    root = posixpath.relpath(".", folder or ".")
    text = (
        "'use strict';\nvar test = require('tape');\n"
        f"try {{ require('{root}/'); }} catch (e) {{ /* the graded files report that */ }}\n"
        f"test('{token} a', function (t) {{ t.equal(1, 2); t.end(); }});\n"
        f"test('{token} b', function (t) {{ t.equal(1, 1); t.end(); }});\n"
    )
    expected: dict[str, Verdict] = {f"{path} > {token} a": "FAILED", f"{path} > {token} b": "PASSED"}
    return Canary(files={path: text.encode()}, appended={}, expected=expected)
