"""What does an engine really return? Measured by sampling, before a rollout is spent on it (case rows B1, B2, B4, B6).

Everything goes through :class:`~drivetrain.engines.protocol.Engine`, so through the path that rollouts take, routers
included. Nothing is remembered: a probe that failed is a probe to be run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import msgspec

from drivetrain.engines.probe_checks import CHECKS, Check, CheckName, Need, Status
from drivetrain.engines.probe_sampler import Evidence, NoEvidence, Sampler
from drivetrain.engines.protocol import Engine, EngineError
from drivetrain.errors import ConfigError
from drivetrain.messages import Message, ToolSpec

_QUESTION = "Tell me a short story about a lighthouse, a storm and somebody who writes programs."
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 5.0


class PromptSource(Protocol):
    """What the probe asks of a :class:`~drivetrain.tokens.codec.TokenCodec`."""

    @property
    def stop_ids(self) -> Sequence[int]:
        """Ids that end a turn."""

    @property
    def tokenizer(self) -> HasVocabulary:
        """The model's tokenizer."""

    def first_prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Ids of a prompt."""


class HasVocabulary(Protocol):
    """A tokenizer as far as the probe needs one."""

    @property
    def vocab_size(self) -> int:
        """Number of ids."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. ``what`` says what was seen, ``fix`` which setting to change (empty when passed).

    ``unknown`` means that the samples prove nothing either way; ``needed`` that training without this evidence is
    refused (otherwise only a failure is reported).
    """

    check: CheckName
    status: Status
    what: str
    fix: str = ""
    needed: bool = True


class ProbeReport(msgspec.Struct, frozen=True):
    """All findings of one engine, in the order in which the checks ran."""

    engine: str
    findings: tuple[Finding, ...]

    def finding(self, check: CheckName) -> Finding:
        """The finding of a check by name."""
        return next(finding for finding in self.findings if finding.check == check)

    @property
    def blocking(self) -> tuple[Finding, ...]:
        """What stands against training: failures, and missing evidence where evidence is needed."""
        return tuple(f for f in self.findings if f.needed and f.status != "passed")

    def require_trainable(self) -> None:
        """Refuse an engine whose samples cannot be trained on.

        Raises:
            ConfigError: a needed check failed or has no evidence; every one is named with its fix.
        """
        if not self.blocking:
            return
        listed = "".join(f"\n  {f.check} ({f.status}): {f.what} {f.fix}".rstrip() for f in self.blocking)
        raise ConfigError(
            f"engine {self.engine} cannot be trained on; {len(self.blocking)} of {len(self.findings)} checks:{listed}",
            fix="\nChange these settings and probe again.",
        )


async def probe_engine(
    engine: Engine,
    codec: PromptSource,
    *,
    call_timeout_s: float = 120.0,
    boot_timeout_s: float = 0.0,
    checks: Sequence[Check] = CHECKS,
) -> ProbeReport:
    """Sample from ``engine`` (started) and judge what comes back; 300 to 500 calls of one to eight tokens each.

    Args:
        codec: prompts, stop ids and vocabulary of the model that the engine is supposed to serve.
        call_timeout_s: an engine that takes longer for one call fails the check that asked.
        boot_timeout_s: how long to try again while the engine answers with a retryable error.
        checks: which to make, in this order; a report of some of them says nothing of the others.

    Raises:
        EngineError: the engine is still not reachable after ``boot_timeout_s``; nothing is known about it then.
    """
    prompt = codec.first_prompt([Message("user", _QUESTION)], [])
    sampler = Sampler(engine, prompt, call_timeout_s=call_timeout_s)
    await _reached(sampler, boot_timeout_s)
    evidence = Evidence(sampler, tuple(codec.stop_ids), codec.tokenizer.vocab_size)
    findings: list[Finding] = []
    for check in checks:
        missing = [f.check for f in findings if f.check in check.after and f.status == "failed"]
        findings.append(await _run(check, evidence, missing))
    return ProbeReport(engine.name, tuple(findings))


async def _reached(sampler: Sampler, boot_timeout_s: float) -> None:
    deadline = asyncio.get_running_loop().time() + boot_timeout_s
    pause = _FIRST_RETRY_S
    while True:
        try:
            await sampler.sample(max_tokens=1, seed=1)
            return
        except EngineError as error:
            if not error.retryable:
                return  # the engine is there and refuses: the first check says why
            if asyncio.get_running_loop().time() + pause > deadline:
                raise
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_RETRY_S)


async def _run(check: Check, evidence: Evidence, missing: Sequence[str]) -> Finding:
    needed = check.need is Need.EVIDENCE
    if missing:
        return Finding(check.name, "unknown", f"not tried: {', '.join(missing)} failed.", needed=needed)
    try:
        status, what = await check.judge(evidence)
    except NoEvidence as error:
        status, what = "unknown", str(error)
    except EngineError as error:
        status, what = "failed", f"the engine failed: {error}"
    needed = needed or (status == "failed" and check.need is Need.NO_FAILURE)
    return Finding(check.name, status, what, "" if status == "passed" else check.fix, needed=needed)
