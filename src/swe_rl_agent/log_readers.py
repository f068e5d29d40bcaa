"""Every log reader a preset may name."""

from __future__ import annotations

from collections.abc import Callable

from swe_rl_agent.last_word import LastWord, mini_trajectory, pi_json
from swe_rl_agent.log_claude import claude_stream_json
from swe_rl_agent.log_codex import codex_json
from swe_rl_agent.log_gemini import gemini_json
from swe_rl_agent.log_opencode import opencode_json
from swe_rl_agent.log_qwen import qwen_json
from swe_rl_agent.preset import EXIT_CODE

READERS: dict[str, Callable[[bytes, bytes], LastWord]] = {
    "pi_json": pi_json,
    "mini_trajectory": mini_trajectory,
    "claude_stream_json": claude_stream_json,
    "codex_json": codex_json,
    "gemini_json": gemini_json,
    "qwen_json": qwen_json,
    "opencode_json": opencode_json,
    EXIT_CODE: lambda _stdout, _native: LastWord(""),
}
"""Reader name in a preset -> function of the captured stdout and the native log."""
