"""Half a surrogate pair in JSON.

A JavaScript harness that cuts a text in the middle of an emoji writes ``"\\ud83d"``: legal for ``JSON.parse`` and
Python's ``json``, refused by strict decoders. It cannot be spelled in UTF-8, so no token stands for it either.
"""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_ESCAPES_IN_BYTES = re.compile(_ESCAPES.pattern.encode())


def replace_lone_surrogates(text: str) -> str:
    """JSON text in which every escape that is half a pair is the replacement character; all else as it was."""
    return _ESCAPES.sub(lambda found: found[1] or r"\ufffd", text)


def replace_lone_surrogates_in(body: bytes) -> bytes:
    """The same for JSON in UTF-8."""
    return _ESCAPES_IN_BYTES.sub(lambda found: found[1] or rb"\ufffd", body)
