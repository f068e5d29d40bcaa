"""Runs inside vLLM's worker (``--worker-extension-cls drivetrain_file_weights.FileWeights``): weights from a file.

NCCL needs a GPU; a safetensors file on a shared disk does not. On CPU linear weights are packed after loading, so the
runner's layerwise reload is used; a plain second ``load_weights`` fails half-way (engines.md section 2, "Weights").
"""

from __future__ import annotations

from typing import Any


class FileWeights:
    """Mixed into vLLM's worker class."""

    model_runner: Any

    def load_file(self, path: str) -> int:
        """Replace the weights by those of ``path``; the number of tensors."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            self.model_runner.reload_weights(weights_iterator=((name, file.get_tensor(name)) for name in names))
        return len(names)
