"""Whom the files and processes of a sandbox belong to on the host when the caller is root: nobody who matters.

bubblewrap gives uid 1000 inside the identity of its caller outside. For root that would be root: without capabilities,
but the owner of every file on the machine that a flaw of the kernel lets it reach. So root starts bubblewrap as
:data:`HOST_UID`, and everything mounted from root's files is mounted with the two exchanged: root's files look like the
sandbox's own, and what the sandbox makes is root's on the disk, as if nothing had happened.
"""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

# Above what distributions give to people, services and container ranges; root's group likewise.
HOST_UID = 1_679_032_320
_IDS = (1 << 32) - 1


def id_map() -> str:
    """Root and :data:`HOST_UID` exchanged, everybody else as they are; lines of ``uid_map``."""
    above = HOST_UID + 1
    ranges = [(0, HOST_UID, 1), (1, 1, HOST_UID - 1), (HOST_UID, 0, 1), (above, above, _IDS - above)]
    return "".join(f"{on_disk} {shown} {count}\n" for on_disk, shown, count in ranges)


@functools.cache
def exchange(executable: str) -> int:
    """Descriptor of a user namespace with :func:`id_map`, for mounts; kept for the life of the process.

    Args:
        executable: a Python. Blocks for about 30 ms, once per process.

    Raises:
        OSError: the kernel does not let us.
    """
    script = "import os,_ctypes as c;c.call_function(c.dlsym(c.dlopen(None,0),'unshare'),(0x10000000,));"
    script += "print(os.readlink('/proc/self/ns/user'),flush=True);os.read(0,1)"
    process = subprocess.Popen(
        [executable, "-I", "-S", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, text=True
    )
    with process:
        assert process.stdout is not None
        if process.stdout.readline().strip() in ("", str(Path("/proc/self/ns/user").readlink())):
            raise OSError("no user namespace can be made")
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{process.pid}/{kind}").write_text(id_map())
        return os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
