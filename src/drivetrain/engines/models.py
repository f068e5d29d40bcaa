"""Where a model comes from: a directory, or a bundled name that is converted once and cached.

Reading a model directory needs neither torch nor transformers; only :mod:`drivetrain.engines.convert` does.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import msgspec

from drivetrain.cache import Progress
from drivetrain.errors import ConfigError

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
BUNDLED_MODELS = (DEFAULT_MODEL,)
CHATML_CLOSE = "<|im_end|>"


class ModelDir(msgspec.Struct, frozen=True, kw_only=True):
    """A model on disk, as the rest of the system sees it.

    ``path`` holds ``config.json``, ``tokenizer.json`` and the weights. ``context_length`` is in tokens.
    ``stop_token_ids`` are all ids that end a turn, the one the chat template writes first.
    ``chat_template`` is the Jinja text.
    """

    path: Path
    name: str
    context_length: int
    vocab_size: int
    stop_token_ids: tuple[int, ...]
    chat_template: str

    @property
    def eos_token_id(self) -> int:
        """The id that closes an assistant turn."""
        return self.stop_token_ids[0]

    @property
    def tokenizer_path(self) -> Path:
        """The file for ``tokenizers.Tokenizer.from_file``."""
        return self.path / "tokenizer.json"


def resolve_model(
    name_or_dir: str | Path = DEFAULT_MODEL,
    cache: Path | None = None,
    progress: Progress | None = None,
    *,
    chat_template: Path | None = None,
) -> ModelDir:
    """Find a model by bundled name or by directory.

    A bundled name is converted on first use into ``cache`` (default ``$DRIVETRAIN_CACHE`` or ``~/.cache/drivetrain``)
    and found there afterwards; ``progress`` receives one line per step of that conversion. ``chat_template`` is a
    file that takes the place of the directory's own template.

    Raises:
        ConfigError: no such model, or a directory that lacks what an engine needs.
        MissingDependency: the conversion needs the ``[engine]`` extra.
    """
    if str(name_or_dir) in BUNDLED_MODELS and not Path(name_or_dir).is_dir():
        from drivetrain.engines.convert import converted  # stays off the import path of directory users

        return read_model_dir(converted(str(name_or_dir), cache, progress), str(name_or_dir), chat_template)
    path = Path(name_or_dir).expanduser()
    if not path.is_dir():
        raise _unknown(str(name_or_dir), path)
    path = path.resolve()
    return read_model_dir(path, path.name, chat_template)


def read_model_dir(path: Path, name: str, chat_template: Path | None = None) -> ModelDir:
    """Read the facts of a Hugging Face model directory.

    Raises:
        ConfigError: ``config.json``, ``tokenizer.json``, a stop token or the chat template is missing or unreadable.
    """
    for needed in ("config.json", "tokenizer.json"):
        if not (path / needed).is_file():
            raise ConfigError(
                f"{path} is not a model directory: {needed} is missing.",
                fix="Point at a directory written by save_pretrained() of a model and its fast tokenizer.",
            )
    config = _read_json(path / "config.json")
    text_config = config.get("text_config") or config
    tokenizer = _read_json(path / "tokenizer.json")
    tokenizer_config = _read_json(path / "tokenizer_config.json")
    template = _chat_template(path, tokenizer_config, chat_template)
    context = text_config.get("max_position_embeddings") or tokenizer_config.get("model_max_length")
    if not isinstance(context, int):
        raise ConfigError(
            f"{path / 'config.json'} does not say how long the context is.", fix="Add max_position_embeddings to it."
        )
    return ModelDir(
        path=path,
        name=name,
        context_length=context,
        vocab_size=int(text_config.get("vocab_size") or len(tokenizer["model"]["vocab"])),
        stop_token_ids=_stop_ids(path, text_config, tokenizer, tokenizer_config, template),
        chat_template=template,
    )


def _chat_template(path: Path, tokenizer_config: dict[str, Any], override: Path | None) -> str:
    for file in (override, path / "chat_template.jinja"):
        if file is not None and file.is_file():
            return file.read_text(encoding="utf-8")
        if file is not None and file is override:
            raise ConfigError(f"the chat template {override} does not exist.", fix="Check the path.")
    inline = tokenizer_config.get("chat_template")
    if isinstance(inline, list):  # older checkpoints: a list of named templates
        inline = {entry["name"]: entry["template"] for entry in inline}.get("default")
    if isinstance(inline, str) and inline:
        return inline
    raise ConfigError(
        f"{path} has no chat template.", fix="Add chat_template.jinja to it, or pass --chat-template FILE."
    )


def _stop_ids(
    path: Path,
    config: dict[str, Any],
    tokenizer: dict[str, Any],
    tokenizer_config: dict[str, Any],
    template: str,
) -> tuple[int, ...]:
    """Ids that end a turn: ChatML's close token first when the template speaks ChatML, then every declared EOS."""
    special = {token["content"]: int(token["id"]) for token in tokenizer.get("added_tokens", [])}
    found: list[int] = []
    if CHATML_CLOSE in template and CHATML_CLOSE in special:
        found.append(special[CHATML_CLOSE])
    eos = tokenizer_config.get("eos_token")
    eos_text = eos.get("content") if isinstance(eos, dict) else eos
    if eos_text in special:
        found.append(special[eos_text])
    for declared in (_read_json(path / "generation_config.json").get("eos_token_id"), config.get("eos_token_id")):
        found.extend(declared if isinstance(declared, list) else [] if declared is None else [declared])
    if not found:
        raise ConfigError(
            f"{path} names no end-of-turn token.", fix="Set eos_token_id in generation_config.json or config.json."
        )
    return tuple(dict.fromkeys(found))


def _read_json(file: Path) -> dict[str, Any]:
    """The object in ``file``; empty when the file does not exist."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not JSON: {error}.", fix="Download or convert the model again.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} is not a JSON object.", fix="Download or convert the model again.")
    return value


def _unknown(name: str, path: Path) -> ConfigError:
    close = difflib.get_close_matches(name.lower(), [known.lower() for known in BUNDLED_MODELS], n=1, cutoff=0.5)
    by_lower = {known.lower(): known for known in BUNDLED_MODELS}
    hint = f"Did you mean {by_lower[close[0]]}? " if close else f"Bundled: {', '.join(BUNDLED_MODELS)}. "
    kind = "is a file, not a model directory" if path.exists() else "is neither a bundled model nor a directory"
    return ConfigError(
        f"{name} {kind}.",
        fix=hint + "For your own weights pass a directory that holds config.json, tokenizer.json and the weights.",
    )
