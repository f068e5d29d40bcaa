"""End what still runs in the agent's sandbox, and note it, before the work is taken (case rows G3, G9 and swe.md G9).

A process that outlives the agent could change files while they are read. It is killed first; what was there when
the sandbox opened (the sandbox's own parts) stays.
"""

from __future__ import annotations

from drivetrain.sandboxes.protocol import SandboxHandle
from swe_rl_env.work.findings import Finding

# The sandbox's first process leaves helpers like itself beside each command: killed, not reported.
# Only built-ins of the shell and absolute programs: the agent may have put others on its PATH.
_PROCESSES = r"""
mine=" "; p=$$
while [ "$p" -gt 0 ] 2>/dev/null; do
  mine="$mine$p "; read -r line <"/proc/$p/stat" || break; set -- ${line##*) }; p=$2
done
each() { # pid -> $key, empty for our own, for zombies and for what is gone
  key=
  case "$mine" in *" $1 "*) return;; esac
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return
  pid=$1; set -- ${line##*) }
  [ "$1" = Z ] || key="$pid:${20}"
}
"""
_LIST = _PROCESSES + 'for d in /proc/[0-9]*; do each "${d#/proc/}"; [ -z "$key" ] || echo "$key"; done\n'
_SETTLE = (
    _PROCESSES
    + r"""
init=$(/usr/bin/tr '\0\n' '  ' </proc/1/cmdline)
for round in 1 2 3 4 5 6; do
  left=0
  for d in /proc/[0-9]*; do
    each "${d#/proc/}"; [ -n "$key" ] || continue
    case " $KEEP " in *" $key "*) continue;; esac
    if [ "$round" = 1 ]; then
      line=$(/usr/bin/tr '\0\n' '  ' <"$d/cmdline" 2>/dev/null)
      [ -z "$line" ] || [ "$line" = "$init" ] || echo "process $line"
      kill -STOP "$pid" 2>/dev/null
    else
      kill -KILL "$pid" 2>/dev/null
    fi
    left=1
  done
  [ "$left" = 1 ] || break
done
for f in /logs /logs/verifier/* /reward* /tmp/reward* /work/reward* "$HOME"/reward* /verifier*; do
  [ ! -e "$f" ] || echo "reward $f"
done
"""
)
_COUNTERS = """
echo devices; /usr/bin/cat /proc/net/dev
echo counters; /usr/bin/cat /proc/net/snmp /proc/net/snmp6 2>/dev/null
"""
_SHOWN = 20
_FULL = 0.9


async def running(box: SandboxHandle) -> tuple[str, ...]:
    """The processes inside now as ``pid:start time``, without those of this very question.

    Raises:
        SandboxError: the sandbox failed.
    """
    done = await box.exec(["/bin/sh", "-c", _LIST], cwd="/")
    return tuple(done.stdout.decode("ascii", "replace").split())


async def settle(box: SandboxHandle, keep: tuple[str, ...]) -> list[Finding]:
    """Kill every process inside but those of ``keep``; what was running, what was tried, what was planted.

    Raises:
        SandboxError: the sandbox failed, or has no room for one more process.
    """
    done = await box.exec(["/bin/sh", "-c", _SETTLE], cwd="/", env={"KEEP": " ".join(keep)})
    out: list[Finding] = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        word, _, detail = line.partition(" ")
        if word == "process":
            out.append(Finding(kind="background_process", detail=detail.strip()[:200]))
        elif word == "reward":
            out.append(Finding(kind="reward_file", detail=detail))
    return out[:_SHOWN] + await network_attempts(box)


async def is_full(box: SandboxHandle, limit: int) -> bool:
    """Whether (nearly) as many processes are inside as may be; False when the sandbox cannot tell.

    Raises:
        SandboxGone: the sandbox is closed or died.
    """
    pids = (await box.stats()).pids
    return pids is not None and pids >= limit * _FULL


async def network_attempts(box: SandboxHandle) -> list[Finding]:
    """What was tried in the sandbox so far; see :func:`network`.

    Raises:
        SandboxError: the sandbox failed.
    """
    done = await box.exec(["/bin/sh", "-c", _COUNTERS], cwd="/")
    devices, _, counters = done.stdout.decode("utf-8", "replace").partition("counters\n")
    return network(devices.removeprefix("devices\n"), counters)


def network(devices: str, counters: str) -> list[Finding]:
    """Attempts to leave a network namespace that has only loopback (others tell nothing), from the kernel's counters.

    Without a route an attempt counts as OutNoRoutes before it becomes a packet; a name look-up goes to port 53 of
    loopback, where nobody listens. Connections between programs inside count as neither.
    """
    names = {line.split(":", 1)[0].strip() for line in devices.splitlines() if ":" in line}
    if names != {"lo"}:
        return []
    values: dict[str, int] = {}
    lines = [line.split() for line in counters.splitlines() if line.strip()]
    for n, words in enumerate(lines):
        if len(words) == 2 and words[1].isdigit():
            values[words[0]] = int(words[1])
        elif n and words[0].endswith(":") and lines[n - 1][0] == words[0] and words[1].lstrip("-").isdigit():
            values |= {words[0] + k: int(v) for k, v in zip(lines[n - 1][1:], words[1:], strict=False)}
    seen = {k: values.get(k, 0) for k in ("Ip:OutNoRoutes", "Ip6OutNoRoutes", "Udp:NoPorts", "Udp6NoPorts")}
    detail = ", ".join(f"{k} {v}" for k, v in seen.items() if v)
    return [Finding(kind="network_attempt", detail=detail)] if detail else []
