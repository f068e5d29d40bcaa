"""Text in the pieces a stream is made of."""

from __future__ import annotations

_SIZE = 48
_MOST = 96


def pieces(text: str) -> list[str]:
    """``text`` cut after words, about 48 characters each; longer ones where there would be more than about a hundred.

    Joined, they are ``text``; there is none for an empty text.
    """
    size = max(_SIZE, len(text) // _MOST)
    found: list[str] = []
    at = 0
    while at < len(text):
        end = at + size
        if end < len(text):
            end = max(text.rfind(" ", at, end), text.rfind("\n", at, end)) + 1 or end
        found.append(text[at:end])
        at = end
    return found
