"""A tiny random model for tests: real ids, real log-probs, real KV, a megabyte, built in a fraction of a second."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from drivetrain.engines.convert import packaged_template
from drivetrain.engines.models import ModelDir, read_model_dir
from drivetrain.engines.quiet import no_progress_bars
from drivetrain.errors import MissingDependency

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def build_tiny_model(
    path: Path | str,
    *,
    vocab_size: int = 512,
    context: int = 2048,
    hidden: int = 64,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    init_std: float = 0.2,
    seed: int = 0,
    corpus: Iterable[str] | None = None,
) -> ModelDir:
    """Write a random Llama with a byte-level BPE tokenizer, ChatML special tokens and the SmolLM2 tool template.

    The weights depend only on the arguments. ``vocab_size`` is an upper bound for the tokenizer (a small corpus may
    give fewer merges) and exact for the model; ``context`` is in tokens. ``corpus`` trains the tokenizer; the default
    is source text of this package. Its random text re-tokenises differently from how it was sampled, which exposes
    every path that decodes and re-encodes. ``init_std`` is that of the weights; the default is wide enough that the
    distribution is not flat, so that errors in positions or masks show. A model to be trained wants 0.02.

    Raises:
        MissingDependency: the ``[engine]`` extra is not installed.
    """
    try:
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        raise MissingDependency(
            "a tiny model needs torch and transformers.", fix="Install them with: pip install 'drivetrain[engine]'"
        ) from error
    out = Path(path)
    out.mkdir(parents=True, exist_ok=True)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        initializer_range=init_std,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)
    model = model.to(torch.float32)
    with no_progress_bars():
        model.save_pretrained(out, safe_serialization=True)
    _tokenizer(vocab_size, corpus or _own_sources()).save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(packaged_template(), encoding="utf-8")
    (out / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", '
        f'"pad_token": "<|im_end|>", "unk_token": "<|endoftext|>", "model_max_length": {context}}}\n',
        encoding="utf-8",
    )
    return read_model_dir(out, out.name)


def _tokenizer(vocab_size: int, corpus: Iterable[str]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def _own_sources() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in sorted(Path(__file__).parent.glob("*.py"))]
