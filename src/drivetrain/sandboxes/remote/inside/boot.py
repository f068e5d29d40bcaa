"""Sets a cloud sandbox up: its user, its folders, its supervisor. Asking again is harmless.

``python3 -I boot.py FOLDER CONFIG`` as root; prints JSON: who and where commands are, or what is missing.
"""

# ruff: noqa: PTH103, PTH108, PTH110, PTH113, PTH114, PTH118, PTH120, PTH123, PTH208
from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UID = GID = 1000
NAME = "agent"
NEEDED = ("_ctypes", "_socket", "asyncio", "fcntl", "marshal", "pwd", "resource", "select", "tarfile")


class Unfit(Exception):
    """This image cannot be used; the message says why."""


def check() -> None:
    """What an image must have."""
    if sys.version_info < (3, 9):  # noqa: UP036 (this file runs on other machines)
        raise Unfit("its python3 is older than 3.9")
    if os.geteuid() != 0:
        raise Unfit("commands do not run as root, which the supervisor needs")
    from importlib.util import find_spec

    for name in NEEDED:
        if find_spec(name) is None:
            raise Unfit(f"its python3 has no module {name}")
    if not hasattr(os, "pidfd_open"):
        raise Unfit("its python3 or its kernel is too old (os.pidfd_open)")


def user() -> tuple[str, str]:
    """Name and HOME of uid 1000, which is made where the image has no such user."""
    import pwd

    try:
        entry = pwd.getpwuid(UID)
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = NAME, "/home/" + NAME
        with open("/etc/passwd", "a") as file:
            file.write(f"{name}:x:{UID}:{GID}::{home}:/bin/sh\n")
        with open("/etc/group", "a") as file:
            file.write(f"{name}:x:{GID}:\n")
    return name, home


def own(path: str) -> None:
    """A folder for the user; one that is there keeps its content and changes hands."""
    if not path.startswith("/") or os.path.normpath(path) != path or path == "/":
        raise Unfit(f"{path!r} is no absolute path for a folder")
    try:
        os.makedirs(path, exist_ok=True)
        os.chown(path, UID, GID)
    except OSError as error:
        raise Unfit(f"cannot make {path}: {error}") from error


def sweep(folder: str) -> None:
    """A disk from a snapshot: what is no part of it goes, the other sandbox's supervisor folder and /tmp."""
    places = (os.path.dirname(folder), "/tmp")
    for path in [os.path.join(place, name) for place in places for name in os.listdir(place)]:
        if path != folder:
            remove(path)


def remove(path: str) -> None:
    """A file or a tree."""
    import shutil

    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
    else:
        shutil.rmtree(path, ignore_errors=True)


def boot(folder: str, config: dict[str, Any]) -> dict[str, Any]:
    check()
    name, home = user()
    if config["fresh"]:
        sweep(folder)
    own(home)
    own(config["workdir"])
    found: dict[str, Any] = {"user": name, "home": home, "path": os.environ.get("PATH", ""), "mounts": []}
    for number, wanted in enumerate(config["markers"]):
        try:
            with open(wanted["path"]) as file:
                digest = file.read().strip()
        except OSError:
            continue
        # What was written over an overlay is part of the snapshot.
        if digest == wanted["digest"] or (config["fresh"] and wanted["overlay"]):
            found["mounts"].append(number)
        else:
            remove(wanted["target"])
    import fcntl

    # Asked again while the first is still at it: one supervisor is enough.
    lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.path.exists(os.path.join(folder, "anchor.sock")):
        return found
    ready, write = os.pipe()
    if os.fork() == 0:
        os.close(ready)
        os.close(lock)
        detach(folder, config, write)
    os.close(write)
    if os.read(ready, 16) != b"ready":
        raise Unfit("the supervisor did not start")
    return found


def detach(folder: str, config: dict[str, Any], ready: int) -> None:
    """Become the supervisor: a session of its own, no descriptor of the caller."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open("/dev/null", os.O_RDWR)
        log = os.open(os.path.join(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, fd in enumerate((null, log, log)):
            os.dup2(fd, number)
        os.chdir("/")
        os.umask(0o077)
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("-900")
            shielded = True
        except OSError:
            shielded = False
        sys.path.insert(0, os.path.join(folder, "code"))
        import asyncio

        import anchor  # type: ignore[import-not-found]

        settings = {
            "ttl_s": config["ttl_s"],
            "rlimits": [tuple(pair) for pair in config["rlimits"]],
            "relay": None,
            "shielded": shielded,
            "user": (UID, GID),
        }
        asyncio.run(anchor.supervise(folder, settings, ready))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    folder = sys.argv[1]
    try:
        sys.stdout.write(json.dumps(boot(folder, json.loads(sys.argv[2]))))
    except Unfit as error:
        sys.stdout.write(json.dumps({"unfit": str(error)}))


if __name__ == "__main__":
    main()
