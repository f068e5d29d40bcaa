"""Bodies that reach new code in what remembers slices of JSON, found by coverage: ``make fuzz`` runs it.

    python -m tests.abuse.coverage_slices -runs=200000

Options are libFuzzer's. An input that is read in another way the second time, or that raises, is printed and ends the
search. Needs atheris (``pip install -c constraints.txt atheris``).
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["drivetrain.gateway.dialects", "drivetrain.gateway.memo", "drivetrain.trace"]):
    from drivetrain.gateway.memo import MessageMemo
    from drivetrain.trace.keys import message_key
    from tests.abuse.remembering import read

from tests.abuse.bodies import APIS
from tests.abuse.spelling import spell

_SMALL = 200
"""Bytes of a memory that forgets while one body is read."""


def one_input(data: bytes) -> None:
    """The first byte says which API and how much is remembered, the rest is the body."""
    if not data:
        return
    api, body = APIS[data[0] % len(APIS)], data[1:]
    try:
        body.decode()
    except UnicodeDecodeError:
        return  # refused before it is decoded
    memo = MessageMemo(limit_bytes=_SMALL if data[0] & 128 else 1 << 20)
    fresh = read(api.name, api.paths[0], body, MessageMemo())
    for _ in range(2):
        assert read(api.name, api.paths[0], body, memo) == fresh
    if fresh[0] == "read":
        messages, keys, _tools = fresh[1]
        assert list(keys) == [message_key(message) for message in messages]


def _seeds(folder: Path) -> None:
    """Bodies that are served, of every API, and the words that they are made of."""
    words: set[str] = set()
    for number, api in enumerate(APIS):
        for index, body in enumerate(api.served):
            text = spell(body)
            words |= set(re.findall(r'"[A-Za-z_]+"', text.decode()))
            for kept in (number, number + 128):
                (folder / "corpus" / f"{api.name}-{index}-{kept}").write_bytes(bytes([kept]) + text)
    escaped = (word.replace('"', '\\"') for word in sorted(words))
    (folder / "words").write_text("".join(f'"{word}"\n' for word in escaped))


def main() -> None:
    """Search until the runs are over."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        _seeds(folder)
        given = [f"-dict={folder / 'words'}", "-max_len=4096", "-timeout=60", "-seed=7", "-print_final_stats=1"]
        atheris.Setup([*sys.argv, *given, f"-artifact_prefix={folder}/", str(folder / "corpus")], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
