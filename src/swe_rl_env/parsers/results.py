"""What a log says: id -> status, gathered under a budget so that a hostile log cannot blow up time or memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from drivetrain.errors import DrivetrainError

Status = Literal["PASSED", "FAILED", "SKIPPED", "ERROR"]
LogParser = Callable[[str], dict[str, Status]]

STATUSES: tuple[Status, ...] = ("PASSED", "FAILED", "SKIPPED", "ERROR")
_RANK: dict[Status, int] = {"PASSED": 0, "SKIPPED": 1, "FAILED": 2, "ERROR": 3}

_ID_CHARACTERS_PER_LOG_CHARACTER = 64
_ID_CHARACTERS_AT_MOST = 1 << 30
_ID_CHARACTERS_AT_LEAST = 1 << 20


class LogUnreadable(DrivetrainError):
    """The log asks for more id text than a log of its size can honestly hold (ids that repeat a huge prefix).

    The log came from the code under test, so this is a verdict about that code, not an infrastructure failure.
    """


def status_of(word: str) -> Status:
    """The status a word names. Anything else counts as ERROR: it is no pass, and upstream's is none either."""
    for status in STATUSES:
        if word == status:
            return status
    return "ERROR"


def worse(a: Status, b: Status) -> Status:
    """The worse of two statuses: PASSED < SKIPPED < FAILED < ERROR."""
    return a if _RANK[a] >= _RANK[b] else b


class Results:
    """Statuses in the order ids were first seen. An empty id is not an id and is dropped.

    Args:
        log_size: characters of the log, which sets how many characters of ids it may produce.
    """

    def __init__(self, log_size: int) -> None:
        self.found: dict[str, Status] = {}
        self._left = min(log_size * _ID_CHARACTERS_PER_LOG_CHARACTER, _ID_CHARACTERS_AT_MOST) + _ID_CHARACTERS_AT_LEAST

    def put(self, test_id: str, status: Status) -> None:
        """The last word wins.

        Raises:
            LogUnreadable: the ids of this log outgrow its budget.
        """
        self._spend(test_id)
        if test_id:
            self.found[test_id] = status

    def keep(self, test_id: str, status: Status) -> None:
        """The first word wins. Raises as :meth:`put`."""
        self._spend(test_id)
        if test_id:
            self.found.setdefault(test_id, status)

    def raise_to(self, test_id: str, status: Status, rank: Mapping[Status, int] = _RANK) -> None:
        """The worse word wins, by ``rank``; on equal rank the first stays. Raises as :meth:`put`."""
        old = self.found.get(test_id)
        if old is None or rank[status] > rank[old]:
            self.put(test_id, status)
        else:
            self._spend(test_id)

    def _spend(self, test_id: str) -> None:
        self._left -= len(test_id) + 1
        if self._left < 0:
            raise LogUnreadable(
                "The log's test ids are far longer than the log itself (a huge suite name before every test).",
                fix="Treat the attempt as unresolved.",
            )


def merge_worse(pairs: Iterable[tuple[str, Status]]) -> dict[str, Status]:
    """One status per id; of contradicting ones the worse."""
    merged: dict[str, Status] = {}
    for test_id, status in pairs:
        old = merged.get(test_id)
        merged[test_id] = status if old is None else worse(old, status)
    return merged
