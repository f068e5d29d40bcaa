"""``SWEEnv``: the client of a served environment, async or (``.sync()``) blocking.

with SWEEnv(base_url="http://127.0.0.1:8000").sync() as env:
    first = env.reset(task="pypi__xmltodict-0.14.2")
    seen = env.step(SWEAction.bash("ls"))
    last = env.step(SWEAction.submit())
    print(last.reward, last.observation.status)
"""

from __future__ import annotations

import re
from typing import Any

from openenv.core import EnvClient
from openenv.core.client_types import StepResult

from swe_rl_env.models import SWEAction, SWEObservation, SWEState
from swe_rl_env.server.errors import EpisodeError

_SERVER_ERROR = re.compile(r"Server error: (.*) \(code: \w+\)", re.DOTALL)


class SWEEnv(EnvClient[SWEAction, SWEObservation, SWEState]):  # type: ignore[misc]  # openenv ships no types
    """One connection, one session.

    ``reset`` and ``step`` raise :class:`~swe_rl_env.server.errors.EpisodeError` for what the server refuses, and
    ``RuntimeError`` for what OpenEnv's does.

    Args:
        base_url: http(s) or ws(s) address of the server.
        message_timeout_s: must be longer than a task's tests take; a client that gives up earlier loses the episode.
        options: OpenEnv's.
    """

    def __init__(self, base_url: str | None = None, *, message_timeout_s: float = 3600.0, **options: Any) -> None:
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)

    def _step_payload(self, action: SWEAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump(exclude_none=True)
        return payload

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[SWEObservation]:
        observation = SWEObservation.model_validate(
            {**payload["observation"], "reward": payload["reward"], "done": payload["done"]}
        )
        return StepResult(
            observation=observation,
            reward=observation.reward,
            done=observation.done,
            metadata=observation.metadata,
        )

    def _parse_state(self, payload: dict[str, Any]) -> SWEState:
        state: SWEState = SWEState.model_validate(payload)
        return state

    async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = await super()._send_and_receive(message)
        except RuntimeError as error:
            match = _SERVER_ERROR.fullmatch(str(error))
            refused = EpisodeError.parse(match[1]) if match else None
            if refused is None:
                raise
            raise refused from error
        return reply
