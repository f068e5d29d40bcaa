"""The words for what one test did; worse wins when a test reports more than once."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["PASSED", "XPASS", "XFAIL", "SKIPPED", "FAILED", "ERROR", "MISSING"]
_RANK: dict[Verdict, int] = {"PASSED": 0, "XPASS": 1, "XFAIL": 2, "SKIPPED": 3, "FAILED": 4, "ERROR": 5, "MISSING": 6}


def worst(a: Verdict | None, b: Verdict) -> Verdict:
    """The worse of two verdicts; None means nothing was reported before."""
    return b if a is None or _RANK[b] > _RANK[a] else a
