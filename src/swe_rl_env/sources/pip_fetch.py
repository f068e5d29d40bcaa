"""Script: ask pip's finder for one file of a project and save it, byte for byte.

Usage: ``python pip_fetch.py PROJECT FILENAME TARGET``. Runs under the interpreter that owns pip; imports nothing
from this package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def main(project: str, filename: str, target: str) -> int:
    """Save ``filename`` of ``project`` to ``target``; exit code 0 on success."""
    from pip._internal.commands.download import DownloadCommand

    command: Any = DownloadCommand("download", "fetch one archive")
    options, _ = command.parse_args(["--quiet", "--no-deps", "--no-binary", ":all:", project])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options=options, session=session)
        links = [c.link for c in finder.find_all_candidates(project) if c.link.filename == filename]
        if not links:
            print(f"{filename} is not offered for {project} by the configured index", file=sys.stderr)
            return 1
        # Identity encoding: a transparent decompression would change the bytes that the checksum is about.
        reply = session.get(links[0].url_without_fragment, headers={"Accept-Encoding": "identity"}, stream=True)
        reply.raise_for_status()
        with Path(target).open("wb") as f:
            for chunk in reply.raw.stream(1 << 16, decode_content=False):
                f.write(chunk)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
