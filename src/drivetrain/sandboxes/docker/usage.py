"""What a container uses, read from the control groups of its PID 1 (v1 or v2)."""

from __future__ import annotations

from pathlib import Path

from drivetrain.sandboxes.protocol import SandboxStats

_FS = Path("/sys/fs/cgroup")


class Usage:
    """Control groups of one container; found while PID 1 lives. What this machine hides is None."""

    def __init__(self, pid: int, fs: Path = _FS) -> None:
        self._groups: dict[str, Path] = {}
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return
        for line in lines:
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                folder = fs / controller / path.lstrip("/") if controller else fs / path.lstrip("/")
                if folder.is_dir():
                    self._groups[controller] = folder

    def read(self) -> SandboxStats:
        """Use so far. Memory is without the file cache that the kernel can take back at once."""
        return self._version_1() if "memory" in self._groups else self._version_2()

    def _version_1(self) -> SandboxStats:
        nanoseconds = self._number("cpuacct", "cpuacct.usage")
        memory = self._number("memory", "memory.usage_in_bytes")
        cache = self._fields("memory", "memory.stat").get("total_inactive_file", 0)
        return SandboxStats(
            cpu_s=None if nanoseconds is None else nanoseconds / 1e9,
            memory_bytes=None if memory is None else max(memory - cache, 0),
            memory_peak_bytes=self._number("memory", "memory.max_usage_in_bytes"),
            pids=self._number("pids", "pids.current"),
            oom_kills=self._fields("memory", "memory.oom_control").get("oom_kill"),
        )

    def _version_2(self) -> SandboxStats:
        microseconds = self._fields("", "cpu.stat").get("usage_usec")
        memory = self._number("", "memory.current")
        cache = self._fields("", "memory.stat").get("inactive_file", 0)
        return SandboxStats(
            cpu_s=None if microseconds is None else microseconds / 1e6,
            memory_bytes=None if memory is None else max(memory - cache, 0),
            memory_peak_bytes=self._number("", "memory.peak"),
            pids=self._number("", "pids.current"),
            oom_kills=self._fields("", "memory.events").get("oom_kill"),
        )

    def _text(self, controller: str, name: str) -> str:
        folder = self._groups.get(controller)
        if folder is None:
            return ""
        try:
            return (folder / name).read_text()
        except OSError:
            return ""

    def _number(self, controller: str, name: str) -> int | None:
        text = self._text(controller, name).strip()
        return int(text) if text.isdigit() else None

    def _fields(self, controller: str, name: str) -> dict[str, int]:
        pairs = (line.split() for line in self._text(controller, name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
