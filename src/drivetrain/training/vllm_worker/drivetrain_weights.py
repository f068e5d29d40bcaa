"""Runs inside vLLM's worker (``--worker-extension-cls drivetrain_weights.FileWeights``): weights from a file.

vLLM's own transfer is NCCL and needs a GPU on both sides; a safetensors file on a disk that both see does not.
Linear weights are packed after loading on CPU, so vLLM's layerwise reload is used. It leaves the packed copy of an
output head that is tied to the embedding as it was (vLLM 0.31 and 0.32), so that one is packed again here.
"""

from __future__ import annotations

from typing import Any


class FileWeights:
    """Mixed into vLLM's worker class; methods are called over ``/collective_rpc``."""

    model_runner: Any

    def load_file(self, path: str) -> int:
        """Replace the weights by those of a safetensors file; the number of tensors."""
        from safetensors import safe_open

        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            self.model_runner.reload_weights(weights_iterator=((name, file.get_tensor(name)) for name in names))
        self._repack_tied_head()
        return len(names)

    def _repack_tied_head(self) -> None:
        model = self.model_runner.get_model()
        head = getattr(model, "lm_head", None)
        embedding = getattr(getattr(model, "model", None), "embed_tokens", None)
        if head is None or embedding is None or not hasattr(head, "cpu_linear"):
            return  # not on CPU: the head reads the embedding's own storage
        if model.config.get_text_config().tie_word_embeddings:
            head.weight.data.copy_(embedding.weight.data)
            head.quant_method.process_weights_after_loading(head)
