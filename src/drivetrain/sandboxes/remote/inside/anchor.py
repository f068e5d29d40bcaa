"""Supervisor of a cloud sandbox: keeps commands, their output and their end, whatever becomes of the owner's calls.

Started once as root by ``boot.py``. It stands where the owner stands in a local sandbox: at the other end of the
control socket of ``init.py``, which runs the commands as an unprivileged user and keeps each one's process tree. The
owner asks through ``call.py``; every question may be asked again, because an answer may be lost on the way.

A job is a folder ``jobs/ID``: ``request`` and ``stdin*`` come from the owner and are removed when read; ``stdout`` and
``stderr`` hold the head of the output, ``stdout.rest`` and ``stderr.rest`` what comes after it where all is wanted,
``part*`` a slice to fetch, and ``done`` (written last, atomically) the end.
"""

# ruff: noqa: PTH105, PTH108, PTH118, PTH123, SIM105
from __future__ import annotations

import array
import asyncio
import base64
import fcntl
import json
import marshal
import os
import shutil
import socket
import sys
import time

import init  # type: ignore[import-not-found]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MARSHAL_VERSION = 2
MAX_MESSAGE = 4096
PIPE_BYTES = 1 << 20
RECENT_BYTES = 1 << 16
REST_BYTES = 1 << 30
START_S = 10.0
SIGKILL = 9
PR_SET_CHILD_SUBREAPER = 36


class Stream:
    """One output stream of a job."""

    def __init__(self, path: str, head_bytes: int, keep_rest: bool) -> None:
        self.path = path
        self.head_left = head_bytes
        self.rest_left = REST_BYTES - head_bytes if keep_rest else 0
        self.total = 0
        self.recent = bytearray()
        self.lost = False  # the disk is full
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        try:
            fcntl.fcntl(self.reader, 1031, PIPE_BYTES)  # F_SETPIPE_SZ
        except OSError:
            pass
        os.set_blocking(self.reader, False)
        open(path, "wb").close()
        self.open = True

    def pull(self) -> int:
        """Take what there is, 1 MiB at most; how much that was, 0 for nothing now, -1 for the end."""
        try:
            data = os.read(self.reader, PIPE_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            return -1
        self.total += len(data)
        self.recent += data
        del self.recent[:-RECENT_BYTES]
        head, rest = data[: self.head_left], data[self.head_left :]
        self.head_left -= len(head)
        self.keep(self.path, head)
        rest = rest[: self.rest_left]
        self.rest_left -= len(rest)
        self.keep(self.path + ".rest", rest)
        return len(data)

    def keep(self, path: str, data: bytes) -> None:
        if not data or self.lost:
            return
        try:
            with open(path, "ab") as file:
                file.write(data)
        except OSError:
            self.lost = True

    def since(self, seen: int) -> tuple[int, bytes]:
        """What came after ``seen`` bytes, as far as it is still here, and where that begins."""
        begin = max(seen, self.total - len(self.recent))
        return begin, bytes(self.recent[len(self.recent) - (self.total - begin) :])

    def close(self) -> None:
        if self.open:
            self.open = False
            os.close(self.reader)


class Job:
    """A command, from its request to its end."""

    def __init__(self, name: str, number: int, folder: str) -> None:
        self.name = name
        self.number = number
        self.folder = folder
        self.begun = time.monotonic()
        self.pid: int | None = None
        self.status: int | None = None
        self.error: str | None = None
        self.timed_out = False
        self.duration = 0.0
        self.streams: list[Stream] = []
        self.changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        return self.status is not None or self.error is not None

    def touch(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    def answer(self, seen: list[int]) -> dict[str, Any]:
        streams = []
        for stream, known in zip(self.streams, seen):  # noqa: B905 (Python 3.9)
            begin, data = stream.since(known)
            streams.append([stream.total, begin, base64.b64encode(data).decode(), stream.lost])
        return {
            "pid": self.pid,
            "status": self.status,
            "error": self.error,
            "timed_out": self.timed_out,
            "duration": self.duration,
            "streams": streams,
        }


class Anchor:
    """The event loop's state."""

    def __init__(self, folder: str, control: socket.socket) -> None:
        self.folder = folder
        self.control = control
        self.jobs: dict[str, Job] = {}
        self.numbers: dict[int, Job] = {}
        self.ready = asyncio.Event()
        self.over = asyncio.Event()
        self.why = "its supervisor has ended"

    def send(self, message: tuple[Any, ...], fds: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([marshal.dumps(message, MARSHAL_VERSION)], rights)

    def heard(self) -> None:
        """One message of init."""
        try:
            data, ancillary, _, _ = self.control.recvmsg(MAX_MESSAGE, socket.CMSG_SPACE(12))
        except BlockingIOError:
            return
        except OSError:
            data, ancillary = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self.control.fileno())
            self.over.set()
            return
        pid = 0
        for _, kind, raw in ancillary:
            if kind == socket.SCM_CREDENTIALS:
                pid = memoryview(raw).cast("i")[0]
        words = data.decode().split(" ")
        if words[0] == "ready":
            self.ready.set()
        elif words[0] == "bye":
            self.why = "its time to live is over" if words[1] == "ttl" else words[1]
        elif words[0] in ("up", "exit", "fail"):
            job = self.numbers.get(int(words[1]))
            if job is None:
                return
            if words[0] == "up":
                job.pid = pid
                job.touch()
            elif words[0] == "exit":
                self.ended(job, status=int(words[2]))
            else:
                self.ended(job, error=os.strerror(int(words[2])))

    def run(self, name: str) -> Job:
        """Start a job, or find the one that was started when this was asked before."""
        job = self.jobs.get(name)
        if job is not None:
            return job
        number = len(self.jobs) + 1
        job = self.jobs[name] = self.numbers[number] = Job(name, number, os.path.join(self.folder, "jobs", name))
        fds: list[int] = []
        try:
            with open(os.path.join(job.folder, "request"), "rb") as file:
                request = marshal.loads(file.read())
            os.unlink(file.name)  # it holds the environment
            fds.append(os.memfd_create("request", os.MFD_CLOEXEC))
            os.write(fds[0], marshal.dumps(request["run"], MARSHAL_VERSION))
            if request["stdin"] is not None:
                fds.append(self.stdin(job, request["stdin"]))
            for stream in ("stdout", "stderr"):
                job.streams.append(Stream(os.path.join(job.folder, stream), request["head"], request["rest"]))
                fds.append(job.streams[-1].writer)
            self.send(("run", number), tuple(fds))
            loop = asyncio.get_running_loop()
            for each in job.streams:
                loop.add_reader(each.reader, self.pull, job, each)
            if request["deadline"] is not None:
                loop.call_later(request["deadline"], self.deadline, job)
        except (OSError, KeyError, ValueError, EOFError) as error:
            self.ended(job, error=repr(error))
        finally:
            for fd in fds:
                os.close(fd)
        return job

    def stdin(self, job: Job, parts: int) -> int:
        """The parts of stdin as one open file."""
        path = os.path.join(job.folder, "stdin")
        with open(path, "wb") as whole:
            for part in range(parts):
                piece = f"{path}.{part}"
                with open(piece, "rb") as file:
                    shutil.copyfileobj(file, whole, 1 << 20)
                os.unlink(piece)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.unlink(path)
        return fd

    def pull(self, job: Job, stream: Stream) -> None:
        if not stream.open:
            return
        count = stream.pull()
        if count < 0:
            self.shut(stream)
        elif count > 0:
            job.touch()

    def shut(self, stream: Stream) -> None:
        if stream.open:
            asyncio.get_running_loop().remove_reader(stream.reader)
            stream.close()

    def deadline(self, job: Job) -> None:
        if not job.ended:
            job.timed_out = True
            self.kill(job, SIGKILL)

    def kill(self, job: Job, signum: int) -> None:
        try:
            self.send(("kill", job.number, signum))
        except OSError:
            pass  # init is gone, and everything is over

    def ended(self, job: Job, status: int | None = None, error: str | None = None) -> None:
        """Take what is left in the pipes (and no more: a grandchild may go on writing), then say so."""
        job.duration = time.monotonic() - job.begun
        for stream in job.streams:
            left = PIPE_BYTES
            while stream.open and left > 0:
                count = stream.pull()
                if count <= 0:
                    break
                left -= count
            self.shut(stream)
        job.status, job.error = status, error
        try:
            with open(os.path.join(job.folder, "done.new"), "w") as file:
                json.dump({"status": status, "error": error, "timed_out": job.timed_out}, file)
            os.replace(os.path.join(job.folder, "done.new"), os.path.join(job.folder, "done"))
        except OSError:
            pass  # the disk is full; the answer is here all the same
        job.touch()

    async def begin(self, job: Job, wait_s: float) -> dict[str, Any]:
        """A started job, as soon as its process exists, or (within the time) at its end."""
        while not job.ended:
            left = (START_S if job.pid is None else wait_s) - (time.monotonic() - job.begun)
            if left <= 0:
                break
            try:
                await asyncio.wait_for(job.changed.wait(), left)
            except asyncio.TimeoutError:  # noqa: UP041 (Python 3.9)
                break
        return job.answer([0, 0])

    def stats(self) -> dict[str, Any]:
        """Processor time, memory and processes of everything below this process, and of what has ended of it."""
        ticks = pages = 0
        tree = init.descendants(os.getpid())
        for pid in (os.getpid(), *tree):
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            ticks += sum(int(value) for value in fields[11:15])
            pages += int(fields[21])
        return {
            "cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
            "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "pids": len(tree),
        }

    async def look(self, job: Job, seen: list[int], wait_s: float) -> dict[str, Any]:
        """What is new, waiting for it."""
        until = time.monotonic() + wait_s
        while not job.ended and all(stream.total <= known for stream, known in zip(job.streams, seen)):  # noqa: B905
            left = until - time.monotonic()
            if left <= 0:
                break
            try:
                await asyncio.wait_for(job.changed.wait(), left)
            except asyncio.TimeoutError:  # noqa: UP041 (Python 3.9)
                break
        return job.answer(seen)

    def cut(self, job: Job, name: str, offset: int, length: int) -> dict[str, Any]:
        """A slice of an output file as a file of its own."""
        with open(os.path.join(job.folder, name), "rb") as source:
            source.seek(offset)
            data = source.read(length)
        path = os.path.join(job.folder, f"part.{name}.{offset}")
        with open(path, "wb") as target:
            target.write(data)
        return {"path": path, "size": len(data)}

    def forget(self, name: str) -> None:
        """Remove the files of a job; its tree can still be killed."""
        job = self.jobs.get(name)
        if job is not None and job.ended:
            shutil.rmtree(job.folder, ignore_errors=True)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one question."""
        try:
            question = json.loads(await reader.read())
            writer.write(json.dumps(await self.answer(question)).encode())
            await writer.drain()
        except (OSError, ValueError, KeyError) as error:
            writer.write(json.dumps({"refused": repr(error)}).encode())
        finally:
            writer.close()

    async def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        word = question["do"]
        for name in question.get("forget", ()):
            self.forget(name)
        if word == "ping":
            return {"pid": os.getpid()}
        if word == "stats":
            return self.stats()
        if word == "run":
            return await self.begin(self.run(question["job"]), question["wait"])
        job = self.jobs[question["job"]]
        if word == "look":
            return await self.look(job, question["seen"], question["wait"])
        if word == "kill":
            self.kill(job, question["signal"])
            return {}
        if word == "cut":
            return self.cut(job, question["name"], question["offset"], question["length"])
        raise ValueError(f"no such question: {word}")


def start_init(folder: str) -> socket.socket:
    """Run ``init.py`` as a child subreaper; the control socket."""
    import ctypes

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    libc = ctypes.CDLL(None)
    pid = os.fork()
    if pid == 0:
        try:
            os.set_inheritable(theirs.fileno(), True)
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # survives exec
            arguments = [sys.executable, "-I", "-S", os.path.join(folder, "code", "init.py"), str(theirs.fileno())]
            os.execv(sys.executable, arguments)
        finally:
            os._exit(70)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # when init dies, what it kept becomes ours
    theirs.close()
    ours.setblocking(False)
    return ours


async def supervise(folder: str, config: dict[str, Any], ready: int) -> None:
    """Until init ends (its deadline, or killed): then nothing that it started may stay."""
    control = start_init(folder)
    anchor = Anchor(folder, control)
    loop = asyncio.get_running_loop()
    loop.add_reader(control.fileno(), anchor.heard)
    anchor.send(("go", config))
    try:
        await asyncio.wait_for(anchor.ready.wait(), 20)
        server = await asyncio.start_unix_server(anchor.serve, os.path.join(folder, "anchor.sock"), limit=1 << 20)
        os.write(ready, b"ready")
        os.close(ready)
        await anchor.over.wait()
        server.close()
    finally:
        finish(folder, anchor.why)


def finish(folder: str, why: str) -> None:
    """Kill everything below this process and say why."""
    with open(os.path.join(folder, "gone.new"), "w") as file:
        json.dump({"gone": why}, file)
    os.replace(os.path.join(folder, "gone.new"), os.path.join(folder, "gone"))
    init.kill_tree(os.getpid(), SIGKILL)
    os._exit(0)
