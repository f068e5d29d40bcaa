"""Compaction is off in the presets. Where it is on and happens: its label, no token trained twice, the work goes on.

Codex: test_codex.py. Gemini CLI only summarises what lies before a later message of a user (``findCompressSplitPoint``
of 0.61.0), which a task given on the command line never gets: here a hook sends one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.codec import TokenCodec
from swe_rl_agent import CLIHarness
from swe_rl_agent.preset import ConfigFile, Variant

from .agents_kit import SED, WAYS
from .conftest import Boxes
from .native_kit import make_bench
from .test_every_agent import LongBench

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

GO_ON = """grep -Eq '"stop_hook_active": ?true' || echo '{"decision": "block", "reason": "Go on."}'"""
FILES: dict[str, dict[str, dict[str, Any]]] = {
    "pi": {
        ".pi/agent/settings.json": {"compaction": {"enabled": True, "reserveTokens": 10_000, "keepRecentTokens": 500}},
        ".pi/agent/models.json": {
            "providers": {
                "drivetrain": {
                    "models": [
                        {
                            "id": "{model}",
                            "contextWindow": 40_000,
                            "maxTokens": "{max_output_tokens}",
                            "input": ["text"],
                            "reasoning": False,
                            "compat": {"maxTokensField": "max_tokens", "supportsStore": False},
                        }
                    ]
                }
            }
        },
    },
    "claude-code": {},
    "opencode": {
        ".config/opencode/opencode.json": {
            "compaction": {"auto": True, "prune": False},
            "provider": {"drivetrain": {"models": {"main": {"limit": {"context": 38_000, "output": 2000}}}}},
        }
    },
    "qwen-code": {".qwen/settings.json": {"model": {"generationConfig": {"contextWindowSize": 100_000}}}},
    "gemini-cli": {
        ".gemini/settings.json": {
            "model": {"compressionThreshold": 0.04},  # of 1,048,576 tokens
            "hooks": {"AfterAgent": [{"hooks": [{"type": "command", "command": GO_ON}]}]},
        }
    },
}
ENV: dict[str, dict[str, str]] = {
    "claude-code": {"DISABLE_AUTO_COMPACT": "", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "60000"},
}
NOISE = {"opencode": 5000}
"""Bytes of one tool result; OpenCode keeps the last results beside its summary, and they must fit."""
DRAFTS = {"gemini-cli": {"summary"}}
"""Gemini CLI has its first summary checked by a second call; what that says is what it carries on with."""
SUMMARY = "<summary><state_snapshot>SUMMARY: answer.txt still has to be mended.</state_snapshot></summary>"
VARIANT = {"claude-code": "small"}


def compacting(agent: CLIHarness, files: Mapping[str, dict[str, Any]], env: Mapping[str, str]) -> CLIHarness:
    """The agent with compaction on and a limit that is reached."""
    extra = Variant(files=tuple(ConfigFile(path, content) for path, content in files.items()))
    preset = msgspec.structs.replace(agent.preset, variants={"compacting": extra}).with_variant("compacting")
    kept = {name: value for name, value in {**preset.env, **env}.items() if value}
    return CLIHarness(msgspec.structs.replace(preset, env=kept), agent.bundle)


@pytest.mark.agent_claim("compaction")
@pytest.mark.parametrize("name", list(FILES))
async def test_compaction_is_labelled_and_what_follows_carries_on(
    name: str, sandbox_for: Boxes, socket_path: Path, tiny_model: ModelDir, codec: TokenCodec
) -> None:
    bench = make_bench(name, VARIANT.get(name), sandbox_for, socket_path.parent, tiny_model, codec, LongBench)
    bench.agent = compacting(bench.agent, FILES[name], ENV.get(name, {}))
    shell = WAYS[name].shell

    def policy(ids: list[int], text: str, index: int) -> str:
        last = text.rsplit("<|im_start|>", 2)[1]
        if "Critically evaluate" in last or ("<tools>" not in text and name != "gemini-cli"):
            return SUMMARY
        if "<tools>" not in text or "create a detailed summary" in last:
            return SUMMARY if name == "claude-code" else "<state_snapshot>A draft.</state_snapshot>"
        if "SUMMARY: answer.txt" not in text and index < 8:
            enough = name == "gemini-cli" and len(ids) > 45_000
            return "I have looked." if enough else shell(f"head -c {NOISE.get(name, 15_000)} /dev/urandom | base64 -w0")
        return "It is done." if "mended now" in text else shell(f"{SED}; echo mended now")

    done = await bench.run(policy)
    assert done.outcome.stop == "completed", done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert done.labels.count("compaction") == 1, (done.labels, done.summary())
    at = done.labels.index("compaction")
    before = set(done.labels[:at])
    assert before - DRAFTS.get(name, set()) == set(done.labels[at + 1 :]) == {"agent"}, (done.labels, done.summary())
    trained = [turn for row in done.rows for turn in row.metadata["trained_turns"]]
    assert len(trained) == len(set(trained))
    assert done.findings == []
