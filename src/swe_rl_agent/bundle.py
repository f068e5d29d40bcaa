"""Bundles: a harness pinned, hashed and relocatable, together with its own runtime.

A bundle is built once from the lock files in ``lock/`` and kept in the cache; a sandbox mounts it read-only at
:data:`MOUNT_ROOT`, so that any glibc Linux image can host any harness and its prompt (Pi names its install path) does
not depend on the machine. Builds are atomic (temporary folder, then rename), serialised by a file lock, and leave
nothing behind when they fail.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from drivetrain.cache import Progress, build_once, cache_root, silent
from drivetrain.errors import ConfigError, InfrastructureError
from drivetrain.sandboxes.protocol import Mount
from swe_rl_agent import bundle_files, bundle_glibc, bundle_native, bundle_node, bundle_npm, bundle_python
from swe_rl_agent.bundle_runtime import RUNTIME_LOCKS
from swe_rl_agent.bundle_tools import LOCKS
from swe_rl_agent.names import lookup

MOUNT_ROOT = "/opt/drivetrain/agents"
"""Folder inside a sandbox below which every bundle is mounted."""

FORMAT = 2
"""Raised when the layout of a bundle changes: older cached bundles are then rebuilt, not read."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """How one bundle is made: its lock files and the function that fills an empty folder from them."""

    name: str
    version: str
    locks: tuple[str, ...]
    build: Callable[[Path, Path, str, Progress], str]
    host: Callable[[], str]


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="pi",
            version="1.6.0",
            locks=("pi.package.json", "pi.package-lock.json", *RUNTIME_LOCKS),
            build=bundle_node.build_pi,
            host=platform.machine,
        ),
        Recipe(
            name="gemini-cli",
            version="0.61.0",
            locks=("gemini-cli.json", *RUNTIME_LOCKS),
            build=bundle_npm.builder(bundle_npm.GEMINI),
            host=platform.machine,
        ),
        Recipe(
            name="qwen-code",
            version="0.24.4",
            locks=("qwen-code.json", *RUNTIME_LOCKS),
            build=bundle_npm.builder(bundle_npm.QWEN),
            host=platform.machine,
        ),
        Recipe(
            name="opencode",
            version="1.18.33",
            locks=("opencode.json",),
            build=bundle_npm.builder(bundle_npm.OPENCODE),
            host=platform.machine,
        ),
        Recipe(
            name="mini-swe-agent",
            version="2.4.6",
            locks=("mini-swe-agent.txt", *RUNTIME_LOCKS),
            build=bundle_python.build_mini,
            host=bundle_python.interpreter_id,
        ),
        Recipe(
            name="claude-code",
            version="2.1.332",
            locks=("claude-code.package.json", "claude-code.package-lock.json"),
            build=bundle_native.build_claude,
            host=platform.machine,
        ),
        Recipe(
            name="codex",
            version="0.171.0",
            locks=("codex.package.json", "codex.package-lock.json"),
            build=bundle_native.build_codex,
            host=platform.machine,
        ),
    )
}


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A built bundle.

    ``path`` is the host folder that a sandbox mounts, ``sha256`` the hash of its whole content, ``runtime`` the
    interpreter inside (``node 22.23.3``), ``bytes`` the total file size, ``files`` the number of files and links,
    ``glibc`` the oldest glibc that runs it (``2.28``; empty: none is needed, it runs in musl images too).
    Without ``mounted`` it stands for a program that the image has (:mod:`swe_rl_agent.bundle_own`).
    """

    name: str
    version: str
    path: Path
    sha256: str
    runtime: str
    bytes: int
    files: int
    glibc: str = ""
    mounted: bool = True

    @property
    def target(self) -> str:
        """Where the bundle lies inside a sandbox."""
        return f"{MOUNT_ROOT}/{self.name}"

    def mount(self) -> Mount:
        """The read-only mount that puts the bundle into a sandbox."""
        return Mount(source=self.path, target=self.target)

    def verify(self, *, full: bool = False) -> None:
        """Check the files on disk against the record.

        Args:
            full: hash every file again (seconds); otherwise only the listing's hash, the count and the total size.

        Raises:
            InfrastructureError: the bundle was changed or damaged after it was built.
        """
        fix = f"Remove {self.path.parent} and build the bundle again."
        try:
            text = (self.path.parent / "files.txt").read_text()
            found = bundle_files.measure(self.path)
        except OSError as error:
            raise InfrastructureError(f"Bundle {self.name} cannot be read: {error}.", fix=fix) from error
        if bundle_files.listing_hash(text) != self.sha256:
            raise InfrastructureError(f"Bundle {self.name}: its file list does not match its hash.", fix=fix)
        if found != (self.files, self.bytes):
            raise InfrastructureError(
                f"Bundle {self.name} holds {found[0]} files of {found[1]} bytes, recorded were {self.files} of "
                f"{self.bytes}.",
                fix=fix,
            )
        if full and bundle_files.listing(self.path)[0] != text:
            raise InfrastructureError(f"Bundle {self.name}: file contents differ from the record.", fix=fix)


def build_bundle(name: str, cache: Path | None = None, progress: Progress | None = None) -> Bundle:
    """Return the bundle, building it first if the cache does not hold it. Blocking; a build takes about a minute.

    Args:
        name: a key of :data:`RECIPES`.
        cache: cache root instead of the default.
        progress: called with one short line per step of a build.

    Raises:
        ConfigError: unknown name, or this host cannot make bundles.
        MissingDependency: npm or pip is not installed.
        InfrastructureError: the installation failed, or the cached bundle is damaged.
    """
    recipe = lookup("agent bundle", name, RECIPES)
    report = progress or silent
    if sys.platform != "linux":
        raise ConfigError(f"Agent bundles are built on Linux, this is {sys.platform}.", fix="Build on a Linux host.")
    return _load(build_once(_place(recipe, cache), lambda folder: _build(recipe, folder, report), report))


def built_bundle(name: str, cache: Path | None = None) -> Bundle | None:
    """The bundle if the cache holds it; nothing is built.

    Raises:
        ConfigError: unknown name.
        InfrastructureError: the cached bundle is damaged.
    """
    place = _place(lookup("agent bundle", name, RECIPES), cache)
    return _load(place) if place.is_dir() else None


def _place(recipe: Recipe, cache: Path | None) -> Path:
    return cache_root(cache) / "bundles" / f"{recipe.name}-{recipe.version}-{_key(recipe)[:16]}"


def _key(recipe: Recipe) -> str:
    """Everything that decides what a build yields: format, lock files, host."""
    digest = hashlib.sha256(f"{FORMAT}\0{recipe.name}\0{recipe.version}\0{recipe.host()}\0".encode())
    for name in recipe.locks:
        digest.update((LOCKS / name).read_bytes())
    return digest.hexdigest()


def _build(recipe: Recipe, folder: Path, report: Progress) -> None:
    root, scratch = folder / "root", folder / "scratch"
    root.mkdir()
    scratch.mkdir()
    runtime = recipe.build(root, scratch, f"{MOUNT_ROOT}/{recipe.name}", report)
    shutil.rmtree(scratch)
    report(f"{recipe.name}: hashing")
    bundle_files.normalise(root)
    text, size = bundle_files.listing(root)
    (folder / "files.txt").write_text(text)
    record = {
        "name": recipe.name,
        "version": recipe.version,
        "sha256": bundle_files.listing_hash(text),
        "runtime": runtime,
        "bytes": size,
        "files": text.count("\n"),
        "glibc": bundle_glibc.glibc_needed(root),
    }
    (folder / "bundle.json").write_bytes(msgspec.json.format(msgspec.json.encode(record)))


def _load(final: Path) -> Bundle:
    try:
        record = msgspec.json.decode((final / "bundle.json").read_bytes(), type=dict[str, str | int])
        bundle = msgspec.convert({**record, "path": str(final / "root")}, Bundle, dec_hook=_to_path)
    except (OSError, msgspec.MsgspecError) as error:
        raise InfrastructureError(
            f"Bundle record {final / 'bundle.json'} is unreadable: {error}.", fix=f"Remove {final} and build again."
        ) from error
    bundle.verify()
    return bundle


def _to_path(kind: type, value: object) -> object:
    return Path(str(value)) if kind is Path else value
