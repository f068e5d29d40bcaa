"""Source distributions from the index that pip is configured for.

``pip download`` prepares metadata, which runs the archive's build back end (and first installs it). Neither is
wanted here, so pip's own finder and session are asked for the link and the bytes, in a process of its own; index,
credentials, certificates and mirrors are whatever pip is configured with. ``pip download`` is the second way, for a
pip whose internals have moved.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from swe_rl_env.building.runtime import pip_command
from swe_rl_env.errors import BuildError
from swe_rl_env.sources.process import run_client
from swe_rl_env.tasks.model import Archive


def download(archive: Archive, folder: Path) -> Path:
    """Put the archive into ``folder`` without running anything from it; return its path.

    Raises:
        BuildError: neither way produced the file.
    """
    pip = pip_command()
    path = folder / archive.filename
    try:
        with as_file(files("swe_rl_env") / "sources" / "pip_fetch.py") as script:
            run_client([pip[0], str(script), archive.name, archive.filename, str(path)], cwd=folder)
    except BuildError as first:
        requirement = f"{archive.name}=={archive.version}"
        argv = [*pip, "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), requirement]
        try:
            run_client(argv, cwd=folder)
        except BuildError as second:
            raise BuildError(f"Cannot fetch {archive.filename}. {first} {second}") from second
    if not path.is_file():
        raise BuildError(f"pip did not produce {archive.filename}.", fix="Check the index that pip is configured for.")
    return path
