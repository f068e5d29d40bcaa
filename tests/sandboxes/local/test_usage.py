"""What a process tree uses: the two ways to find its processes say the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from drivetrain.sandboxes.local import usage

# Four processes: a child of the main thread, one of another thread, and a grandchild.
_TREE = """
import subprocess, sys, threading
sleep = [sys.executable, "-Sc", "import time; print(flush=True); time.sleep(60)"]
nest = [sys.executable, "-Sc", f"import subprocess; subprocess.run({sleep!r})"]
def child(argv, started):
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as running:
        running.stdout.readline()
        started.release()
        running.wait()
started = threading.Semaphore(0)
for argv in (sleep, nest):
    threading.Thread(target=child, args=(argv, started)).start()
for _ in range(2):
    started.acquire()
print("ready", flush=True)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-Sc", _TREE], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        os.killpg(process.pid, 9)


def test_a_tree_is_whole_whichever_way_it_is_found(tree: int, monkeypatch: pytest.MonkeyPatch) -> None:
    by_children, by_parents = usage._tree_by_children(tree), usage._tree_by_parents(tree)
    assert len(by_children) == len(by_parents) == 4
    assert {parent for parent, _, _ in by_children} == {parent for parent, _, _ in by_parents}
    told = usage.tree_usage(tree)
    assert told.pids == 4 and told.cpu_s is not None and told.cpu_s > 0
    assert told.memory_bytes is not None and told.memory_bytes > 4 << 20
    monkeypatch.setattr(Path, "exists", lambda path: "children" not in str(path))
    assert usage.tree_usage(tree).pids == 4


def test_a_process_that_has_ended_uses_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert usage.tree_usage(ended.pid).pids == 0
    assert usage._tree_by_children(ended.pid) == []
