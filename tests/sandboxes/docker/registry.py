"""A registry with one image, for a dockerd in its network namespace: ``python registry.py LAYER.tar`` prints the port.

Repositories: ``library/box`` has the image under the tag ``1``; ``busy`` has it too, but the first two requests for it
are over the rate limit; ``private`` wants credentials.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def build(layer: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Manifest and blobs by digest."""
    packed = gzip.compress(layer, mtime=0)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"]},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
    ).encode()
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(packed),
                    "digest": digest(packed),
                }
            ],
        }
    ).encode()
    return manifest, {digest(config): config, digest(packed): packed}


class Registry(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    manifest = b""
    blobs: dict[str, bytes] = {}
    refused = 0

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        words = self.path.strip("/").split("/")
        if words == ["v2"]:
            self.reply(200, b"{}")
        elif words[1] == "private":
            self.fail(401, "UNAUTHORIZED", "authentication required")
        elif words[-2] == "blobs" and words[-1] in self.blobs:
            self.reply(200, self.blobs[words[-1]], "application/octet-stream")
        elif words[1] == "busy" and Registry.refused < 2:
            Registry.refused += 1
            self.fail(429, "TOOMANYREQUESTS", "You have reached your pull rate limit")
        elif words[-2] == "manifests" and words[-1] in ("1", digest(self.manifest)):
            self.reply(200, self.manifest, MANIFEST_TYPE)
        else:
            self.fail(404, "MANIFEST_UNKNOWN", "manifest unknown")

    def fail(self, status: int, code: str, message: str) -> None:
        self.reply(status, json.dumps({"errors": [{"code": code, "message": message}]}).encode())

    def reply(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        if kind == MANIFEST_TYPE:
            self.send_header("Docker-Content-Digest", digest(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main() -> None:
    Registry.manifest, Registry.blobs = build(Path(sys.argv[1]).read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    print(server.server_port, digest(Registry.manifest), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
