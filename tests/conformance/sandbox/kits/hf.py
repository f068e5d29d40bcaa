"""Hugging Face's official SDK against a double of its Jobs on loopback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from drivetrain.sandboxes import Feature, SandboxBackend
from drivetrain.sandboxes.hf import HFBackend
from tests.conformance.sandbox.kits.cloud import CloudKit
from tests.sandboxes.doubles.hf_server import TOKEN, shared_server


class HFKit(CloudKit):
    name = "hf"

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()

    def missing(self) -> str | None:
        try:
            from huggingface_hub import Sandbox, constants  # noqa: F401
        except ImportError:
            return "the extra drivetrain[hf] is not installed"
        if not constants.ENDPOINT.startswith("http://127.0.0.1:"):
            return f"the SDK is bound to {constants.ENDPOINT}"
        return super().missing()

    def promised(self) -> frozenset[Feature]:
        return frozenset({"image", "mount", "overlay", "pids_limit", "reach"})

    def start(self) -> None:
        self.url = os.environ.get(self.variable, "")
        if not self.url:
            self.server = self._stack.enter_context(shared_server())
            self.url = self.server.url

    def close(self) -> None:
        self.server = None
        self._stack.close()

    def environ(self) -> Mapping[str, str]:
        return {**super().environ(), "HF_ENDPOINT": self.url, "DRIVETRAIN_LIVE_HF": "keep"}

    def make(self, root: Path) -> SandboxBackend:
        return HFBackend(scope=self.scope(root), relay_port=0, dial_port=0, token=TOKEN, allow_open=True)

    def strict(self, root: Path) -> SandboxBackend:
        return HFBackend(scope=self.scope(root), relay_port=0, dial_port=0, token=TOKEN)
