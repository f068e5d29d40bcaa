"""One blocking POST, for the trainer's thread."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

import msgspec

from drivetrain.engines.protocol import EngineError


def post_json(url: str, body: Any, *, key: str | None = None, timeout_s: float) -> tuple[int, bytes]:
    """Status and body of the answer, whatever the status is.

    Raises:
        EngineError: no answer.
    """
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    data = b"" if body is None else msgspec.json.encode(body)
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError as error:
        raise EngineError(f"{url} does not answer ({error}).") from error
