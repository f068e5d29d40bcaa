"""Commands: exit codes, environment, user, streams, bounds."""

from __future__ import annotations

import asyncio
import hashlib
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from drivetrain.errors import ConfigError
from drivetrain.sandboxes import SandboxBackend, SandboxHandle
from tests.conformance.sandbox.inside import python, sh, sleepers, until_sleepers
from tests.conformance.sandbox.kits.base import Kit, command_lines

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A shell between us and the command may export these; they tell nothing.
SHELL_NAMES = {b"PWD", b"OLDPWD", b"SHLVL", b"_"}


def seen_environment(output: bytes) -> dict[bytes, bytes]:
    return dict(entry.split(b"=", 1) for entry in output.split(b"\0") if entry)


async def test_output_and_exit_code(box: SandboxHandle) -> None:
    done = await sh(box, "echo out; echo err >&2; exit 7")
    assert (done.exit_code, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    assert not done.timed_out
    assert not done.truncated
    assert 0 < done.duration_s < 10


@pytest.mark.parametrize("code", [0, 1, 124, 137, 255])
async def test_an_exit_code_is_the_commands_own(box: SandboxHandle, code: int) -> None:
    done = await sh(box, f"exit {code}")
    assert (done.exit_code, done.timed_out) == (code, False)


@pytest.mark.parametrize(
    ("name", "number"), [("HUP", 1), ("KILL", 9), ("TERM", 15), ("SEGV", 11), ("PIPE", 13), ("XFSZ", 25)]
)
async def test_a_signal_is_128_plus_its_number(box: SandboxHandle, name: str, number: int) -> None:
    assert (await sh(box, f"kill -{name} $$; sleep 5")).exit_code == 128 + number


async def test_a_command_starts_with_default_signal_handling(box: SandboxHandle) -> None:
    """An ignored SIGPIPE or SIGINT survives exec and changes what programs do. 32 and 33 are the C library's own: make
    and others leave them ignored, and no program can tell."""
    masks = (await box.exec(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])).stdout.split()
    assert {int(mask, 16) & ~(0b11 << 31) for mask in masks[1::2]} == {0}, masks


async def test_a_command_that_cannot_run_exits_like_in_a_shell(box: SandboxHandle) -> None:
    missing = await box.exec(["no-such-program"])
    assert missing.exit_code == 127
    assert b"no-such-program" in missing.stderr
    await box.write("plain.txt", b"text")
    assert (await box.exec(["./plain.txt"])).exit_code == 126
    assert (await box.exec([box.workdir])).exit_code == 126
    assert (await box.exec(["true"], cwd="/no/such/folder")).exit_code == 127


async def test_a_command_is_a_list(box: SandboxHandle) -> None:
    for wrong in ("echo one string", []):
        with pytest.raises(ConfigError):
            await box.exec(wrong)
        with pytest.raises(ConfigError):
            await box.start(wrong)


async def test_words_are_not_a_shells(box: SandboxHandle) -> None:
    words = [
        "",
        " ",
        "a b",
        "$HOME",
        "`id`",
        "*",
        "'",
        '"',
        "\\",
        "-n",
        "--",
        ";",
        "&",
        "|",
        "\t",
        "a\nb",
        "\x01\x7f",
        "!",
    ]
    done = await box.exec(["printf", "%s\\0", *words])
    assert done.stdout.decode().split("\0")[:-1] == words


async def test_every_byte_passes_through_argv_and_environment(box: SandboxHandle) -> None:
    """Not valid UTF-8; the strings carry the bytes as the operating system's file names do (PEP 383)."""
    raw = bytes(range(1, 256))
    text = raw.decode("utf-8", "surrogateescape")
    assert (await box.exec(["printf", "%s", text])).stdout == raw
    done = await box.exec(["env", "-0"], env={"RAW": text})
    assert seen_environment(done.stdout)[b"RAW"] == raw


async def test_unicode_in_argv_env_and_names(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", 'echo "$1" "$X"; touch "$1"; ls', "sh", "naïve 🐍"], env={"X": "ключ"})
    assert done.stdout.decode() == "naïve 🐍 ключ\nnaïve 🐍\n"


async def test_output_may_be_any_bytes(box: SandboxHandle) -> None:
    raw = bytes(range(256)) * 3
    await box.write("raw", raw)
    done = await sh(box, "cat raw; cat raw >&2")
    assert (done.stdout, done.stderr) == (raw, raw)


async def test_a_large_environment_and_argv(box: SandboxHandle) -> None:
    big = "x" * 100_000
    done = await box.exec(["sh", "-c", "echo ${#A} ${#B} ${#1}", "sh", big], env={"A": big, "B": big})
    assert done.stdout == b"100000 100000 100000\n"


async def test_a_word_the_kernel_refuses_is_the_commands_failure(box: SandboxHandle) -> None:
    """One word may have 128 KiB (MAX_ARG_STRLEN)."""
    assert (await box.exec(["true", "x" * 200_000])).exit_code in (126, 127)
    assert (await box.exec(["true"])).exit_code == 0


async def test_a_zero_byte_in_a_command_is_refused(box: SandboxHandle) -> None:
    for argv, env in ((["echo", "a\0b"], {}), (["true"], {"A": "a\0b"})):
        try:
            done = await box.exec(argv, env=env)
        except (ConfigError, ValueError):
            continue
        assert done.exit_code != 0, "cut at the zero byte without a word"
    assert (await box.exec(["true"])).exit_code == 0


async def test_environment_is_spec_plus_call_and_nothing_of_the_host(
    backend: SandboxBackend, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "leaked")
    box = await backend.create(kit.spec(env={"FROM_SPEC": "1", "BOTH": "spec"}))
    done = await box.exec(["env", "-0"], env={"BOTH": "call", "LINES": "a\nb=c", "EMPTY": ""})
    seen = seen_environment(done.stdout)
    expected = {b"HOME", b"PATH", b"TMPDIR", b"USER", b"LANG", b"FROM_SPEC", b"BOTH", b"LINES", b"EMPTY"}
    assert set(seen) - SHELL_NAMES == expected
    assert (seen[b"FROM_SPEC"], seen[b"BOTH"], seen[b"LINES"], seen[b"EMPTY"]) == (b"1", b"call", b"a\nb=c", b"")
    assert seen[b"HOME"].decode() == box.home
    again = seen_environment((await box.exec(["env", "-0"])).stdout)
    assert again[b"BOTH"] == b"spec"
    assert b"LINES" not in again


async def test_environment_defaults_can_be_replaced(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(env={"LANG": "C", "USER": "somebody"}))
    seen = seen_environment((await box.exec(["env", "-0"], env={"PATH": "/elsewhere:/usr/bin:/bin"})).stdout)
    assert (seen[b"LANG"], seen[b"USER"], seen[b"PATH"]) == (b"C", b"somebody", b"/elsewhere:/usr/bin:/bin")


async def test_environment_values_are_in_no_command_line(backend: SandboxBackend, kit: Kit, nap: str) -> None:
    secret = f"value-that-must-not-show-{nap}"
    box = await backend.create(kit.spec(env={"SPEC": secret}))
    job = await box.start(["sh", "-c", f"sleep {nap}; true"], env={"CALL": secret})
    running = asyncio.create_task(box.exec(["sleep", nap], env={"CALL": secret}))
    await until_sleepers(box, nap, 2)
    assert len(kit.processes(f"sleep {nap}")) >= 2, "or the next line shows nothing"
    assert command_lines(secret.encode()) == []
    inside = await sh(box, f"cat /proc/[0-9]*/cmdline | grep -a -c 'must-not-sho[w]-{nap}'")
    assert inside.stdout == b"0\n"
    running.cancel()
    await job.kill(0)


async def test_cwd_defaults_to_the_workdir(backend: SandboxBackend, kit: Kit) -> None:
    box = await backend.create(kit.spec(workdir="/testbed/project"))
    assert box.workdir == "/testbed/project"
    assert (await box.exec(["pwd"])).stdout == b"/testbed/project\n"
    assert (await box.exec(["pwd"], cwd="/tmp")).stdout == b"/tmp\n"
    assert (await sh(box, "touch here $HOME/there $TMPDIR/tmp && ls")).stdout == b"here\n"


async def test_the_user_is_nobody_special(box: SandboxHandle) -> None:
    assert int((await box.exec(["id", "-u"])).stdout) != 0
    assert int((await box.exec(["id", "-g"])).stdout) != 0
    status = (await box.exec(["grep", "-E", "^Cap(Inh|Prm|Eff|Amb)", "/proc/self/status"])).stdout.split()
    assert {int(value, 16) for value in status[1::2]} == {0}, status
    name = (await box.exec(["id", "-un"])).stdout.strip()
    assert (await sh(box, 'printf %s "$USER"')).stdout == name


async def test_home_workdir_and_tmpdir_are_the_users_own(box: SandboxHandle) -> None:
    for place in ("$HOME", ".", "$TMPDIR"):
        done = await sh(
            box, f"cd {place} && mkdir -p a/b && echo x > a/b/c && chmod 700 a && mv a d && rm -r d && echo fine"
        )
        assert done.stdout == b"fine\n", done.stderr
    assert (await sh(box, 'cd ~ && [ "$PWD" = "$HOME" ] && echo same')).stdout == b"same\n"
    # Programs make and lock files there at once: ssh, npm and git refuse a HOME of somebody else.
    assert (await sh(box, 'stat -c %u "$HOME" .; id -u')).stdout.split().count(
        (await box.exec(["id", "-u"])).stdout.strip()
    ) == 3


async def test_new_files_are_not_for_everybody_to_write(box: SandboxHandle) -> None:
    assert (await sh(box, "touch f; mkdir d; stat -c %a f d")).stdout == b"644\n755\n"


@pytest.mark.case("F4")
async def test_stdin_is_null_or_the_given_bytes(box: SandboxHandle) -> None:
    assert (await box.exec(["cat"], timeout_s=20)).stdout == b""
    data = bytes(range(256)) * 4000
    assert (await box.exec(["cat"], stdin=data)).stdout == data
    assert (await box.exec(["true"], stdin=data)).exit_code == 0  # a reader that does not read
    assert (await box.exec(["head", "-c", "3"], stdin=data)).stdout == b"\0\1\2"
    assert (await box.exec(["cat"], stdin=b"", timeout_s=20)).stdout == b""


@pytest.mark.case("F4")
async def test_a_program_that_reads_its_stdin_to_the_end_does_not_hang(box: SandboxHandle) -> None:
    """Agents that see a pipe wait for more of a prompt: it is never a pipe left open, nor a terminal."""
    script = "[ -t 0 ] && echo terminal; [ -p /dev/stdin ] && echo pipe; cat; echo end"
    done = await sh(box, script, timeout_s=20)
    assert (done.stdout, done.timed_out) == (b"end\n", False)
    nested = await sh(box, "sh -c 'sh -c cat; echo inner'; cat; echo outer", timeout_s=20)
    assert (nested.stdout, nested.timed_out) == (b"inner\nouter\n", False)


async def test_there_is_no_terminal(box: SandboxHandle) -> None:
    assert (await sh(box, "(: < /dev/tty) 2>/dev/null || echo none")).stdout == b"none\n"
    assert (await sh(box, "[ -t 1 ] || [ -t 2 ] || echo none")).stdout == b"none\n"


async def test_output_beyond_the_bound_is_dropped_and_the_command_still_ends(box: SandboxHandle) -> None:
    done = await box.exec(
        ["sh", "-c", "echo first; yes | head -c 30000000; echo last >&2; exit 4"], max_output_bytes=1000, timeout_s=60
    )
    assert (done.exit_code, done.stderr, done.timed_out, done.truncated) == (4, b"last\n", False, True)
    assert done.stdout.startswith(b"first\ny\n")
    assert len(done.stdout) == 1000


async def test_output_at_the_bound_is_complete(box: SandboxHandle) -> None:
    done = await box.exec(["sh", "-c", "yes | head -c 1000"], max_output_bytes=1000)
    assert (len(done.stdout), done.truncated) == (1000, False)
    done = await box.exec(["sh", "-c", "yes | head -c 1001 >&2"], max_output_bytes=1000)
    assert (len(done.stderr), done.truncated) == (1000, True)


async def test_both_streams_full_do_not_deadlock(box: SandboxHandle) -> None:
    script = "yes o | head -c 5000000 & yes e | head -c 5000000 >&2; wait"
    done = await box.exec(["sh", "-c", script], max_output_bytes=8 << 20, timeout_s=60)
    assert (len(done.stdout), len(done.stderr), done.truncated) == (5_000_000, 5_000_000, False)
    assert (set(done.stdout), set(done.stderr)) == (set(b"o\n"), set(b"e\n"))


async def test_output_beyond_the_bound_is_whole_in_the_spill_folder(box: SandboxHandle, tmp_path: Path) -> None:
    folder = tmp_path / "spill" / "deep"
    done = await box.exec(
        ["sh", "-c", "seq 1 200000; printf brief >&2"], max_output_bytes=1000, spill=folder, timeout_s=60
    )
    whole = b"".join(b"%d\n" % number for number in range(1, 200001))
    assert (done.stdout, done.stderr, done.truncated) == (whole[:1000], b"brief", True)
    assert (folder / "stdout").read_bytes() == whole
    assert not (folder / "stderr").exists(), "what fits needs no file"
    job = await box.start(["sh", "-c", "seq 1 200000 >&2"], max_output_bytes=1000, spill=folder)
    await job.wait(60)
    assert (folder / "stderr").read_bytes() == whole


async def test_a_grandchild_that_holds_stdout_does_not_hang_the_call(box: SandboxHandle, nap: str) -> None:
    begun = time.monotonic()
    done = await sh(box, f"sleep {nap} & echo done", timeout_s=60)
    assert time.monotonic() - begun < 30
    assert (done.exit_code, done.stdout, done.timed_out) == (0, b"done\n", False)
    assert await sleepers(box, nap) == 1  # a daemon a command leaves behind is the command's business


async def test_a_grandchild_that_floods_stdout_does_not_hang_the_call(box: SandboxHandle) -> None:
    begun = time.monotonic()
    done = await box.exec(["sh", "-c", "timeout 60 yes & echo done; exit 3"], timeout_s=60, max_output_bytes=1 << 20)
    assert time.monotonic() - begun < 30
    assert done.exit_code == 3
    await sh(box, "pkill -x yes || for p in /proc/[0-9]*; do grep -qsax yes $p/comm && kill ${p#/proc/}; done; true")


async def test_parallel_execs(box: SandboxHandle) -> None:
    results = await asyncio.gather(*(sh(box, f"sleep 0.1; echo {i}; exit {i}") for i in range(20)))
    assert [(int(done.stdout), done.exit_code) for done in results] == [(i, i) for i in range(20)]


async def test_a_quick_command_does_not_wait_for_a_slow_or_loud_one(box: SandboxHandle) -> None:
    slow = asyncio.create_task(box.exec(["sleep", "60"], timeout_s=90))
    loud = await box.start(["timeout", "60", "yes"], max_output_bytes=1000)
    begun = time.monotonic()
    for number in range(5):
        assert (await box.exec(["echo", str(number)])).stdout == b"%d\n" % number
    assert time.monotonic() - begun < 30
    assert not slow.done()
    slow.cancel()
    await loud.kill(0)


async def test_a_command_that_is_silent_for_long_is_waited_for(box: SandboxHandle) -> None:
    """Longer than the read time-out that HTTP clients come with (5 s in httpx)."""
    job = await box.start(["sh", "-c", "sleep 6; echo job; exit 6"])
    done = await sh(box, "sleep 6; echo exec; exit 5")
    assert (done.exit_code, done.stdout) == (5, b"exec\n")
    assert done.duration_s > 5.5
    ended = await job.wait(30)
    assert (ended.exit_code, ended.stdout) == (6, b"job\n")


async def test_no_descriptor_of_the_owner_is_inherited(box: SandboxHandle) -> None:
    # ls itself opens one to read the folder.
    assert (await box.exec(["ls", "/proc/self/fd"])).stdout.split() == [b"0", b"1", b"2", b"3"]


async def test_descriptors_of_the_owner_do_not_grow(box: SandboxHandle) -> None:
    async def use() -> None:
        for _ in range(3):
            await box.exec(["cat"], stdin=b"x")
            await box.exec(["sleep", "5"], timeout_s=0.01)
            job = await box.start(["sleep", "5"])
            await job.kill(0)

    def held() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    await use()
    before = held()
    await use()
    await use()
    # Connections kept for the next call come and go; what a call leaks stays, six times here.
    for _ in range(200):
        if held() <= before + 4:
            return
        await asyncio.sleep(0.1)
    assert held() <= before + 4


async def test_the_clocks_are_sane(box: SandboxHandle) -> None:
    before = datetime.now(UTC).timestamp()
    seen = float((await box.exec(["date", "+%s.%N"])).stdout)
    after = datetime.now(UTC).timestamp()
    assert before - 2 < seen < after + 2
    first, second = (await sh(box, "cut -d' ' -f1 /proc/uptime; sleep 0.3; cut -d' ' -f1 /proc/uptime")).stdout.split()
    assert 0.2 < float(second) - float(first) < 20


async def test_the_time_zone_is_utc_wherever_the_host_is(
    backend: SandboxBackend, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    box = await backend.create(kit.spec())
    assert (await box.exec(["date", "+%z"])).stdout == b"+0000\n"
    assert (await box.exec(["date", "+%z"], env={"TZ": "XXX-3"})).stdout == b"+0300\n"


async def test_a_script_with_a_large_program_in_it(box: SandboxHandle) -> None:
    """A program over standard input, as graders send theirs."""
    program = b"\n".join(b"x%d=%d" % (number, number) for number in range(12_000)) + b"\necho $x11999\n"
    done = await box.exec(["sh"], stdin=program, timeout_s=60)
    assert done.stdout == b"11999\n"
    assert (
        hashlib.sha256(program).hexdigest() == (await box.exec(["sha256sum"], stdin=program)).stdout.decode().split()[0]
    )


@pytest.mark.needs("mount")
async def test_a_python_program_runs(backend: SandboxBackend, kit: Kit) -> None:
    client = kit.client()
    box = await backend.create(kit.spec(mounts=client.mounts))
    script = (
        "import sys, json, subprocess, threading; print(subprocess.run(['echo', 'hi'], capture_output=True).stdout)"
    )
    assert await python(box, client, script) == "b'hi\\n'\n"
