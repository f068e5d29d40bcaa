"""The files that run inside a cloud sandbox, as one script that lays them out and starts ``boot.py``."""

from __future__ import annotations

import functools
from importlib import resources

_PARTS = {
    "init.py": "drivetrain.sandboxes.inside",
    "files.py": "drivetrain.sandboxes.inside",
    "anchor.py": "drivetrain.sandboxes.remote.inside",
    "boot.py": "drivetrain.sandboxes.remote.inside",
    "call.py": "drivetrain.sandboxes.remote.inside",
}

_SCRIPT = """\
import os, runpy, sys
folder = sys.argv[1]
# Commands run the file helper, which is in code; what jobs leave is root's alone.
for name, mode in (("", 0o711), ("code", 0o755), ("jobs", 0o700)):
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    os.chmod(os.path.join(folder, name), mode)
for name, text in {parts!r}.items():
    path = os.path.join(folder, "code", name)
    if not os.path.exists(path):
        with open(path + ".new", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path + ".new", 0o644)
        os.replace(path + ".new", path)
sys.argv[0] = os.path.join(folder, "code", "boot.py")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@functools.cache
def setup_script() -> bytes:
    """For ``python3 -I setup.py FOLDER CONFIG`` (see ``inside/boot.py``)."""
    parts = {name: resources.files(package).joinpath(name).read_text() for name, package in _PARTS.items()}
    return _SCRIPT.format(parts=parts).encode()
