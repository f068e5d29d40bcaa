"""PID 1 of a local sandbox: runs commands for the owner, reaps orphans, ends everything at the deadline.

Started as ``python -I -S init.py FD`` (or from compiled code, see ``CODE``); FD is one end of a SOCK_SEQPACKET pair
whose other end the owner holds. Every job gets a *keeper*: a child subreaper that forks the command and stays until the
last descendant is gone, so a job's tree is complete whatever it forks, ``setsid``s or re-parents, and can be killed as
a whole.

Owner -> init: ``marshal`` tuples ``("go", config)``, ``("run", job, argv...)``, ``("kill", job, signal)``.
Init -> owner: ASCII ``hello``, ``ready``, ``up JOB``, ``exit JOB STATUS``, ``fail JOB ERRNO``, ``bye WHY``; the kernel
attaches the sender's pid in the owner's namespace, which is how the owner learns host pids.

The process is not dumpable: code in the box has the same uid and could otherwise trace it and forge results.
"""

# Pathlib and contextlib cost more to import than the rest together.
# ruff: noqa: PTH100, PTH120, PTH123, SIM105
from __future__ import annotations

# posix and not os (a fifth of Python's start), _socket and not socket, and so on; no json, no typing.
import _ctypes
import _signal  # type: ignore[import-not-found]
import _socket
import gc
import marshal
import posix as os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
SIGKILL, SIGSTOP = 9, 19
MAX_MESSAGE = 4096
MAX_FDS = 4
IDLE_S = 0.02

# Modules of this folder, compiled by the same Python: name -> marshalled code. The owner may start us from such code to
# save the time of compiling; ``load`` finds the files otherwise.
CODE: dict[str, bytes] = globals().get("CODE", {})

_prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]


def prctl(option: int, value: int) -> None:
    _ctypes.call_function(_prctl, (option, value, 0, 0, 0))


def load(name: str) -> Any:
    """A module of this folder; what it does may make cycles."""
    gc.enable()
    if name not in CODE:
        return __import__(name)
    module = type(os)(name)
    sys.modules[name] = module
    exec(marshal.loads(CODE[name]), module.__dict__)
    return module


def parents() -> dict[int, int]:
    """Parent of every live (not zombie) process in the namespace."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command name may hold spaces and brackets; the fields after the last bracket are fixed.
                state, ppid = file.read().rpartition(b")")[2].split()[:2]
        except OSError:
            continue
        if state not in (b"Z", b"X"):
            found[int(name)] = int(ppid)
    return found


def descendants(root: int) -> set[int]:
    """Live descendants of ``root``, without it."""
    parent = parents()
    found: set[int] = set()
    frontier = {root}
    while frontier:
        frontier = {pid for pid, ppid in parent.items() if ppid in frontier} - found
        found |= frontier
    return found


def signal_all(pids: set[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except OSError:
            pass


def kill_tree(root: int, signum: int) -> None:
    """Signal every descendant of ``root``. For SIGKILL stop them first, so that nothing can fork its way out."""
    if signum != SIGKILL:
        signal_all(descendants(root), signum)
        return
    stopped: set[int] = set()
    for _ in range(200):
        fresh = descendants(root) - stopped
        if not fresh:
            break
        signal_all(fresh, SIGSTOP)
        stopped |= fresh
    signal_all(descendants(root) | stopped, SIGKILL)


class Init:
    """The event loop of PID 1."""

    def __init__(self, control: _socket.socket) -> None:
        self.control = control
        self.deadline = time.monotonic() + 60.0
        self.rlimits: list[tuple[int, int]] = []
        self.shielded = False
        self.user: tuple[int, int] | None = None  # uid and gid of commands, when this is root; a request can say else
        self.keepers: dict[int, int] = {}  # keeper pid -> job
        self.pidfds: dict[int, int] = {}  # keeper or relay pid -> pidfd, only there to wake the poll
        self.relay: int | None = None
        self.relay_config: tuple[_socket.socket, bytes] | None = None
        self.prepared = False
        self.poller = select.poll()
        self.poller.register(control.fileno(), select.POLLIN)

    def tell(self, text: str) -> None:
        try:
            self.control.send(text.encode())
        except OSError:
            os._exit(0)  # the owner is gone

    def run(self) -> None:
        self.tell("hello")
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                try:
                    self.control.send(b"bye ttl", _socket.MSG_DONTWAIT)
                except OSError:
                    pass  # a hung owner must not keep the box alive
                return
            # One second bounds how long an orphan stays a zombie.
            events = self.poller.poll(min(left, 1.0 if self.prepared else IDLE_S) * 1000)
            for fd, _ in events:
                if fd == self.control.fileno() and not self.receive():
                    return
            self.reap()
            if not events and not self.prepared:
                __import__("os")  # for file operations, which inherit it; not while somebody waits for a command
                self.prepared = True

    def receive(self) -> bool:
        """Handle one message; False when the owner hung up."""
        data, ancillary, _, _ = self.control.recvmsg(
            MAX_MESSAGE, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC
        )
        if not data:
            return False
        fds: list[int] = []
        for level, kind, payload in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                fds.extend(memoryview(payload).cast("i"))
        message = marshal.loads(data)
        if message[0] == "go":
            self.configure(message[1])
        elif message[0] == "run":
            self.spawn(message[1], fds)
        elif message[0] == "kill":
            for pid, job in list(self.keepers.items()):
                if job == message[1]:
                    kill_tree(pid, message[2])
        for fd in fds:
            os.close(fd)
        return True

    def configure(self, config: dict[str, Any]) -> None:
        self.deadline = time.monotonic() + config["ttl_s"]
        self.rlimits = config["rlimits"]
        self.shielded = config["shielded"]
        self.user = config.get("user")
        if config["relay"] is not None:
            port, target = config["relay"]
            listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(512)
            self.relay_config = (listener, target)
            self.start_relay()
        self.tell("ready")
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 2)  # stderr so far was the owner's start-up log
        os.close(null)

    def watch(self, pid: int) -> None:
        self.pidfds[pid] = fd = os.pidfd_open(pid)
        self.poller.register(fd, select.POLLIN)

    def unwatch(self, pid: int) -> None:
        fd = self.pidfds.pop(pid)
        self.poller.unregister(fd)
        os.close(fd)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.pidfds:
                self.unwatch(pid)
            if pid == self.relay:
                self.start_relay()
            elif pid in self.keepers:
                job = self.keepers.pop(pid)
                if status != 0:
                    # Something in the box killed the keeper: its tree is ours now, and it may not outlive the job.
                    self.kill_strays()
                    self.tell(f"exit {job} {SIGKILL}")

    def kill_strays(self) -> None:
        """Kill every tree below us that has no keeper; stopped first, or a stray forks once more before it dies."""
        known = {*self.keepers, self.relay}
        for _ in range(200):
            strays = {child for child, parent in parents().items() if parent == os.getpid()} - known
            if not strays:
                return
            signal_all(strays, SIGSTOP)
            for stray in strays:
                kill_tree(stray, SIGKILL)
            signal_all(strays, SIGKILL)

    def fork(self) -> int:
        """Fork; the child has none of the pidfds."""
        pid = os.fork()
        if pid == 0:
            for fd in self.pidfds.values():
                os.close(fd)
        return pid

    def start_relay(self) -> None:
        """(Re)start the relay; the listener lives here, so clients wait in its backlog while it restarts."""
        assert self.relay_config is not None
        try:
            pid = self.fork()
        except OSError:
            self.relay = None
            return
        if pid:
            self.relay = pid
            self.watch(pid)
            return
        try:
            self.control.close()
            load("relay").serve(self.relay_config[0].detach(), self.relay_config[1])
        finally:
            os._exit(1)

    def spawn(self, job: int, fds: list[int]) -> None:
        """Fork the keeper of a job. ``fds``: the request, stdin (or none), stdout, stderr."""
        try:
            pid = self.fork()
        except OSError as error:
            self.tell(f"fail {job} {error.errno}")
            return
        if pid:
            self.keepers[pid] = job
            self.watch(pid)
            return
        try:
            self.keep(job, fds)
        finally:
            os._exit(70)

    def keep(self, job: int, fds: list[int]) -> None:
        """In the keeper: fork the command, report its end, stay until nothing of it is left."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            main = os.fork()
        except OSError as error:
            self.tell(f"fail {job} {error.errno}")
            os._exit(0)
        if main == 0:
            try:
                self.command(job, fds)
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        if self.relay_config is not None:
            self.relay_config[0].close()
        while True:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                os._exit(0)
            if pid == main:
                self.tell(f"exit {job} {status}")

    def command(self, job: int, fds: list[int]) -> None:
        """In the command's process: become the command."""
        request_fd, *stdio = fds
        size = os.fstat(request_fd).st_size
        request = marshal.loads(os.pread(request_fd, size, 0))
        os.setsid()
        if len(stdio) == 2:
            stdio.insert(0, os.open("/dev/null", os.O_RDONLY))
        for number, fd in enumerate(stdio):
            os.dup2(fd, number)
        if self.shielded:
            expose()
        # Python ignores two, an owner under nohup a third, and ignored signals survive exec.
        for number in range(1, 65):
            if _signal.getsignal(number) == _signal.SIG_IGN:
                try:
                    _signal.signal(number, _signal.SIG_DFL)
                except (OSError, ValueError):
                    pass  # one of the C library's own
        for kind, value in request.get("rlimits", self.rlimits):
            hard = resource.getrlimit(kind)[1]
            limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (limit, limit))
        user = request.get("user", self.user)
        if user is not None:
            become(*user)
        self.tell(f"up {job}")
        what = request["cwd"]
        try:
            os.chdir(what)
            if "file" in request:
                os._exit(load(request.get("module", "files")).run(*request["file"]))
            what = request["argv"][0]
            execute(request["argv"], request["env"])
        except OSError as error:
            os.write(2, b"drivetrain: %s: %s\n" % (what, os.strerror(error.errno or 0).encode()))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)
        except BaseException as error:
            os.write(2, repr(error).encode(errors="replace"))


def execute(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """``os.execvpe``: the program is looked for in the PATH of ``env`` unless its name has a slash."""
    name = argv[0]
    if b"/" in name:
        os.execve(name, argv, env)
    failed: OSError = FileNotFoundError(2, os.strerror(2))
    for folder in env.get(b"PATH", b"/bin:/usr/bin").split(b":"):
        try:
            os.execve(folder + b"/" + name if folder else name, argv, env)
        except OSError as error:
            if isinstance(failed, (FileNotFoundError, NotADirectoryError)):  # a refusal says more than they do
                failed = error
    raise failed


def become(uid: int, gid: int) -> None:
    """Drop from root for good: no program started from here regains privileges."""
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def expose() -> None:
    """When memory runs out, this process goes before those of the trainer."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")


def main() -> None:
    try:
        os.setsid()
    except OSError:
        pass  # the first process of a container leads its session already
    try:
        expose()
    except OSError:
        pass
    prctl(PR_SET_DUMPABLE, 0)
    os.umask(0o022)
    sys.dont_write_bytecode = True
    gc.disable()  # no cycles are made here, and a collection after a fork copies pages for nothing
    if not CODE:
        # The folder of this file is on a read-only root that nothing in the box can rename or cover.
        from os.path import abspath, dirname

        sys.path.insert(0, dirname(abspath(__file__)))
    control = _socket.socket(fileno=int(sys.argv[1]))
    os.set_inheritable(control.fileno(), False)
    Init(control).run()


if __name__ == "__main__":
    main()
