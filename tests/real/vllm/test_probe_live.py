"""The probe before a sound server: all of its checks pass."""

from __future__ import annotations

from drivetrain.engines.probe import probe_engine
from drivetrain.engines.probe_checks import CHECKS
from drivetrain.tokens.codec import TokenCodec
from tests.real.vllm.support import started
from tests.real.vllm_server import LiveServer


async def test_the_probe_passes(server: LiveServer, codec: TokenCodec) -> None:
    engine = await started(server, api="completions")
    report = await probe_engine(engine, codec)
    await engine.aclose()
    for finding in report.findings:
        print(f"\n{finding.check}: {finding.status}, {finding.what}", end="")
    assert [(f.check, f.status) for f in report.findings] == [(check.name, "passed") for check in CHECKS]
    report.require_trainable()
