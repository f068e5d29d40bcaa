"""What a unified diff touches, read from its text."""

from __future__ import annotations

import re

_HEADER = re.compile(r'^diff --git (?:"a/((?:[^"\\]|\\.)*)"|a/(.*?)) (?:"b/((?:[^"\\]|\\.)*)"|b/(.*))$')
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_NAMED = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}


def _unquote(text: str) -> str:
    """Git's C-style quoting of odd file names."""

    def one(match: re.Match[bytes]) -> bytes:
        code = match.group(1)
        return bytes([_NAMED[code] if code in _NAMED else int(code, 8) & 0xFF])

    return _ESCAPE.sub(one, text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")


def _header(line: str) -> tuple[str, str] | None:
    """Old and new path of a ``diff --git`` line. Names with blanks are told apart by their being equal."""
    rest = line.removeprefix("diff --git ")
    if rest.startswith("a/") and '"' not in rest:
        half = (len(rest) - 1) // 2
        old, new = rest[:half], rest[half + 1 :]
        if new.startswith("b/") and old[2:] == new[2:] and rest[half : half + 1] == " ":
            return old[2:], new[2:]
    match = _HEADER.match(line)
    if match is None:
        return None
    quoted_old, old, quoted_new, new = match.groups()
    return (
        old if quoted_old is None else _unquote(quoted_old),
        new if quoted_new is None else _unquote(quoted_new),
    )


def patch_paths(patch: str) -> tuple[str, ...]:
    """Every path a diff adds, changes or removes, both names of a rename, sorted.

    Only header lines count: a ``diff --git`` in the body of a hunk starts with a blank, ``+`` or ``-``.
    """
    found: set[str] = set()
    for line in patch.split("\n"):
        if line.startswith("diff --git ") and (paths := _header(line.rstrip("\r"))) is not None:
            found.update(paths)
    return tuple(sorted(found))


def paths_after(patch: str) -> tuple[str, ...]:
    """Every path that a diff adds or changes and that is there afterwards, sorted."""
    found: dict[str, bool] = {}
    path: str | None = None
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            paths = _header(line.rstrip("\r"))
            path = paths[1] if paths is not None else None
            if path is not None:
                found[path] = True
        elif path is not None and line.startswith("@@ "):
            path = None  # what follows is content
        elif path is not None and line.startswith("deleted file mode "):
            found[path] = False
    return tuple(sorted(path for path, there in found.items() if there))


def patch_lines(patch: str) -> int:
    """Added plus removed lines, the size that filters use."""
    count, hunk = 0, False
    for line in patch.split("\n"):
        if line.startswith("diff --git "):
            hunk = False
        elif line.startswith("@@ "):
            hunk = True
        elif hunk and line[:1] in ("+", "-"):
            count += 1
    return count
