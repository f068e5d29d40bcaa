"""A small run: two finished rollouts, one that is still going on, and a reference agent's without a model call."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.engines.scripted import ScriptedEngine
from drivetrain.gateway.core import Gateway
from drivetrain.gateway.policy import SessionPolicy
from drivetrain.messages import Call, Message, ToolSpec
from drivetrain.rollout.cross_check import LogFinding
from drivetrain.rollout.result import RolloutResult
from drivetrain.rollout.run_dir import RunDir
from drivetrain.rollout.selection import Selection
from drivetrain.tokens.codec import TokenCodec

PATCH = b"""diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1,2 +1,2 @@
--- an sql comment
+++ one more
 kept \xff
"""
VERDICTS = {"FAIL_TO_PASS": {"t.py::test_fix": "FAILED"}, "PASS_TO_PASS": {"t.py::test_old": "PASSED"}}
GRADE = {"outcome": "unresolved", "reason": "tests_failed", "f2p_passed": 0, "f2p_total": 1, "p2p_passed": 1,
         "p2p_total": 1, "findings": [{"kind": "test_edit", "path": "t.py", "detail": "dropped"}]}  # fmt: skip


@pytest.fixture
async def run(tmp_path: Path, codec: TokenCodec, tiny_model: ModelDir) -> RunDir:
    folder = RunDir.create(tmp_path / "runs" / "first")
    selection = Selection()
    folder.write_info({"model": {"name": "tiny", "path": str(tiny_model.path)}, "selection": selection})
    gateway = Gateway(ScriptedEngine.from_lines(["one", "two"], tiny_model), codec, folder.journal, model="m")
    tools = (ToolSpec("bash"),)
    for group, systems in enumerate((["be brief", "be quick"], ["be brief", "be brief"], ["be brief"])):
        name = f"fix.a.{group}"
        labels = {"rollout": name, "task": "fix", "agent": "a", "group": str(group)}
        session, _ = await gateway.open_session(SessionPolicy(model="m"), labels=labels)
        history: list[Message] = [Message("user", "fix the bug")]
        for text in systems:
            call = Call("test", "m", (Message("system", text), *history), tools)
            served = await gateway.serve(session, call, repr(call).encode())
            await gateway.delivered(session, served)
            history += [Message("assistant", served.reply.content), Message("user", "go on")]
        if group == 2:
            continue
        rows = selection.rows(session.graph, "a", reward=0.0, session_id=session.id)
        folder.append(
            RolloutResult(
                rollout_id=name,
                session_id=session.id,
                task_id="fix",
                agent="a",
                group=group,
                status="ok",
                reward=0.0,
                rows=rows,
                turns=len(session.graph),
                grade=GRADE,
                log_findings=[LogFinding("log_missing_text", "turn 1", "'two' is not in the log")],
            )
        )
        (folder.folder(name) / "work.patch").write_bytes(PATCH)
        (folder.folder(name) / "verdicts.json").write_bytes(msgspec.json.encode(VERDICTS))
    await gateway.aclose()
    reference = RolloutResult(
        rollout_id="fix.oracle.0", session_id="", task_id="fix", agent="oracle", group=0, status="ok", reward=1.0
    )
    folder.append(reference)
    return folder
