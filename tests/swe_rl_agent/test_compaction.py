"""Compaction is off in the presets. Where it is on and happens: its label, no token trained twice, the work goes on.

Codex: test_codex.py. Gemini CLI never compacted at the thresholds that were tried (harnesses.md section 7).
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
}
ENV: dict[str, dict[str, str]] = {
    "claude-code": {"DISABLE_AUTO_COMPACT": "", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "60000"},
}
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

    def policy(_ids: list[int], text: str, index: int) -> str:
        last = text.rsplit("<|im_start|>", 2)[1]
        if "<tools>" not in text or "create a detailed summary" in last:
            return "<summary>SUMMARY: answer.txt still has to be mended.</summary>"
        if "SUMMARY: answer.txt" not in text and index < 8:
            return shell("head -c 15000 /dev/urandom | base64 -w0")
        return "It is done." if "mended now" in text else shell(f"{SED}; echo mended now")

    done = await bench.run(policy)
    assert done.outcome.stop == "completed", done.summary()
    assert done.files["answer.txt"] == b"right\n"
    assert done.labels.count("compaction") == 1, (done.labels, done.summary())
    at = done.labels.index("compaction")
    assert set(done.labels[:at]) == set(done.labels[at + 1 :]) == {"agent"}
    trained = [turn for row in done.rows for turn in row.metadata["trained_turns"]]
    assert len(trained) == len(set(trained))
    assert done.findings == []
