"""Hugging Face's official SDK against a double of its Jobs on loopback."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from drivetrain.sandboxes import Feature, SandboxBackend
from drivetrain.sandboxes.hf import HFBackend
from tests.conformance.sandbox.kits.cloud import CloudKit
from tests.sandboxes.doubles.hf_server import TOKEN, HFServer


class HFKit(CloudKit):
    name = "hf"

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

    def serve(self, root: Path) -> HFServer:
        from huggingface_hub import constants

        return HFServer(root, urlsplit(constants.ENDPOINT).port or 0)

    def environ(self) -> Mapping[str, str]:
        return {**super().environ(), "HF_ENDPOINT": self.url, "DRIVETRAIN_LIVE_HF": "keep"}

    def make(self, root: Path) -> SandboxBackend:
        return HFBackend(scope=self.scope(root), relay_port=0, dial_port=0, token=TOKEN, allow_open=True)

    def strict(self, root: Path) -> SandboxBackend:
        return HFBackend(scope=self.scope(root), relay_port=0, dial_port=0, token=TOKEN)
