"""Sandboxes that are containers of Docker or Podman."""

from drivetrain.sandboxes.docker.backend import DEFAULT_IMAGE, DockerBackend, default_root
from drivetrain.sandboxes.docker.engine import EngineError, find_socket
from drivetrain.sandboxes.docker.images import ImageNotFound, ImageRefused, RegistryBusy
from drivetrain.sandboxes.docker.sandbox import DockerSandbox

__all__ = [
    "DEFAULT_IMAGE",
    "DockerBackend",
    "DockerSandbox",
    "EngineError",
    "ImageNotFound",
    "ImageRefused",
    "RegistryBusy",
    "default_root",
    "find_socket",
]
