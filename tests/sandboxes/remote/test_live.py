"""The real providers. Costs money: runs only when asked for, with credentials.

``DRIVETRAIN_LIVE_E2B=1 E2B_API_KEY=... `` or ``DRIVETRAIN_LIVE_HF=1 HF_TOKEN=...`` and this file.
"""

from __future__ import annotations

import os

import pytest

from drivetrain.sandboxes import Limits, SandboxSpec, get_backend


@pytest.mark.real
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "opt_in", "key"), [
    ("e2b", "DRIVETRAIN_LIVE_E2B", "E2B_API_KEY"),
    ("hf", "DRIVETRAIN_LIVE_HF", "HF_TOKEN"),
])  # fmt: skip
async def test_a_real_sandbox(name: str, opt_in: str, key: str) -> None:
    if not (os.environ.get(opt_in) == "1" and os.environ.get(key)):
        pytest.skip(f"set {opt_in}=1 and {key} to run against the real provider")
    backend = get_backend(name)
    try:
        box = await backend.create(SandboxSpec(network="open", limits=Limits(ttl_s=300, pids=200)))
        done = await box.exec(["sh", "-c", "id -u; echo $X"], env={"X": "value"})
        assert (done.exit_code, done.stdout) == (0, b"1000\nvalue\n")
        data = os.urandom(20 << 20)
        await box.write("big", data)
        assert await box.read("big") == data
        assert (await box.exec(["sleep", "60"], timeout_s=1)).timed_out
        assert (await box.stats()).cpu_s is not None
        assert (await box.reach(8000)).url.startswith("https://")
        assert box.id not in await backend.reap()
    finally:
        await backend.aclose()
