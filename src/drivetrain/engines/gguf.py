"""Read a GGUF file with transformers and write a model directory: ``python -m drivetrain.engines.gguf FILE OUT``.

Run as a process by :mod:`drivetrain.engines.convert`; nothing imports it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from drivetrain.engines.convert import packaged_template


def main(gguf: Path, out: Path) -> None:
    """Convert ``gguf`` (a file) into the directory ``out``: fp32 safetensors, fast tokenizer, our chat template."""
    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    _save_model(loaded, out)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = loaded.config.max_position_embeddings
    tokenizer.chat_template = packaged_template()
    tokenizer.save_pretrained(out)
    _split_digits(out / "tokenizer.json")


def _save_model(loaded: Any, out: Path) -> None:
    """Write ``loaded`` as fp32 safetensors; save_pretrained refuses a GGUF-loaded model, so a fresh one carries it."""
    config = type(loaded.config).from_dict(loaded.config.to_dict())
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config._name_or_path = ""
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.generation_config = type(loaded.generation_config).from_model_config(config)
    fresh.save_pretrained(out, safe_serialization=True)


def _split_digits(tokenizer_file: Path) -> None:
    """Put back the pre-tokenizer rule that the GGUF reader drops: SmolLM splits every digit before byte-level BPE.

    Source: ``tokenizer.ggml.pre = smollm`` in the file's metadata, whose first pattern in llama.cpp is ``\\p{N}``.
    """
    data = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    byte_level = data["pre_tokenizer"]
    if byte_level["type"] == "ByteLevel":
        digits = {"type": "Digits", "individual_digits": True}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, byte_level]}
        tokenizer_file.write_text(json.dumps(data, ensure_ascii=False, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
