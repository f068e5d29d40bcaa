"""What a client did wrong, or what the server could not do for it, as a code that survives the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from drivetrain.errors import ConfigError, DrivetrainError, InfrastructureError, MissingDependency

Code = Literal[
    "bad_request",  # arguments that mean nothing here
    "unknown_task",
    "no_episode",  # a step before a reset
    "episode_over",  # a step after the end
    "closed",  # the episode was idle for too long, or the server is ending
    "capacity_reached",  # as many episodes run as may
    "unavailable",  # the sandbox or the task could not be made ready; trying again may help
    "misconfigured",  # nor would it help
]

HTTP_STATUS: dict[Code, int] = {
    "bad_request": 422,
    "unknown_task": 404,
    "no_episode": 409,
    "episode_over": 409,
    "closed": 410,
    "capacity_reached": 503,
    "unavailable": 503,
    "misconfigured": 500,
}


class EpisodeError(DrivetrainError):
    """Refused, and no reward is involved: what there was of the episode is as it was.

    Its text begins with the code, because text is all that OpenEnv's WebSocket carries of an exception.
    """

    def __init__(self, code: Code, what: str, *, fix: str = "") -> None:
        super().__init__(plain(what), fix=plain(fix))
        self.code: Code = code

    def __str__(self) -> str:
        return f"{self.code}: {super().__str__()}"

    @classmethod
    def parse(cls, text: str) -> EpisodeError | None:
        """The error whose text this is; None when it is another's."""
        head, colon, rest = text.partition(": ")
        for code in get_args(Code):
            if colon and head == code:
                return cls(code, rest)
        return None


def plain(text: str) -> str:
    """Text that can be sent: lone surrogates, which JSON may spell and UTF-8 may not, are written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Failures of the machinery as errors of the server's own."""
    try:
        yield
    except (ConfigError, MissingDependency) as error:
        raise EpisodeError("misconfigured", f"{what}: {error.what}", fix=error.fix) from error
    except (InfrastructureError, OSError) as error:
        raise EpisodeError("unavailable", f"{what}: {error}", fix="Try again.") from error
