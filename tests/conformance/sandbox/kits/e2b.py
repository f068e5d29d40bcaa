"""E2B's official SDK against a double of E2B on loopback."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from drivetrain.sandboxes import Feature, SandboxBackend
from drivetrain.sandboxes.e2b import E2BBackend
from tests.conformance.sandbox.kits.cloud import CloudKit
from tests.sandboxes.doubles.e2b_server import API_KEY, E2BServer


class E2BKit(CloudKit):
    name = "e2b"

    def missing(self) -> str | None:
        if importlib.util.find_spec("e2b") is None:
            return "the extra drivetrain[e2b] is not installed"
        return super().missing()

    def promised(self) -> frozenset[Feature]:
        return frozenset({"image", "mount", "overlay", "network_policy", "pids_limit", "reach", "snapshot"})

    def serve(self, root: Path) -> E2BServer:
        return E2BServer(root)

    def make(self, root: Path) -> SandboxBackend:
        options = {"api_key": API_KEY, "api_url": self.url, "sandbox_url": self.url}
        return E2BBackend(scope=self.scope(root), relay_port=0, dial_port=0, **options)
