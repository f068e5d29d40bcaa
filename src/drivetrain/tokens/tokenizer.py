"""Text <-> ids through the model's own ``tokenizer.json``; no transformers needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import tokenizers

from drivetrain.errors import ConfigError


class Tokenizer:
    """A thin, typed view of a ``tokenizers.Tokenizer``.

    Special tokens written in the text (as chat templates do) become their ids; nothing is added around the text.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, sha256: str | None = None) -> None:
        self._backend = backend
        self.sha256 = sha256
        """Hex digest of ``tokenizer.json``; None when the tokenizer does not come from a file."""
        backend.no_truncation()
        backend.no_padding()
        self.special_tokens: dict[str, int] = {
            token.content: index for index, token in backend.get_added_tokens_decoder().items() if token.special
        }

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """Load ``tokenizer.json``.

        Raises:
            ConfigError: the file is missing or not a tokenizer.
        """
        if not path.is_file():
            raise ConfigError(f"no tokenizer at {path}.", fix="Point to a model directory that holds tokenizer.json.")
        try:
            source = path.read_bytes()
            return cls(tokenizers.Tokenizer.from_buffer(source), sha256=hashlib.sha256(source).hexdigest())
        except Exception as error:  # the library raises bare Exception on bad JSON
            raise ConfigError(
                f"{path} is not a tokenizer: {error}", fix="Save it again with save_pretrained."
            ) from error

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, special tokens recognised, none added.

        Takes one to two seconds of CPU per million characters; other threads run meanwhile.
        """
        try:
            return self._encode(text)
        except TypeError:  # half a surrogate pair, which no token spells
            return self._encode(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))

    def _encode(self, text: str) -> list[int]:
        """The batch call, unlike the single one, lets go of the interpreter lock."""
        return list(self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids`` with special tokens spelled out (nothing vanishes); broken UTF-8 becomes U+FFFD."""
        return str(self._backend.decode(list(ids), skip_special_tokens=False))

    def token_id(self, token: str) -> int | None:
        """Id of a token by its exact spelling, or None."""
        found = self._backend.token_to_id(token)
        return None if found is None else int(found)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Spelling of each id, for people."""
        return [self._backend.id_to_token(index) or f"<{index}>" for index in ids]
