"""Tokens are spelled by their bytes; what is no text is an escape, never a replacement character."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drivetrain.engines.models import ModelDir
from drivetrain.tokens.tokenizer import Tokenizer
from drivetrain.viewer.spelling import token_table


def test_parts_of_a_character_are_escapes_and_keep_their_bytes(tiny_model: ModelDir) -> None:
    tokenizer = Tokenizer.from_file(tiny_model.tokenizer_path)
    ids = tokenizer.encode("a é 🙂\n\x00<|im_end|>")
    table = token_table(ids, tokenizer)
    assert table.ids == sorted(set(ids))
    at = {token: index for index, token in enumerate(table.ids)}
    raw = b"".join(bytes.fromhex(table.raw[at[i]]) if at[i] in table.raw else table.texts[at[i]].encode() for i in ids)
    assert raw.decode() == "a é 🙂\n\x00<|im_end|>"
    assert table.raw and all(table.texts[index].startswith("\\x") for index in table.raw)
    assert [table.texts[index] for index in table.special] == ["<|im_end|>"]
    assert not any("�" in text for text in table.texts)


class ByteFallback:
    """What a sentencepiece vocabulary looks like."""

    special_tokens = {"<s>": 0}
    _pieces = ["<s>", "▁the", "<0xE2>", "�"]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(["<s>", "the", "�", "�"][i] for i in ids)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        return [self._pieces[i] for i in ids]


def test_byte_fallback_tokens_and_a_real_replacement_character() -> None:
    table = token_table([0, 1, 2, 3], ByteFallback())
    assert table.texts == ["<s>", "the", "\\xe2", "�"]
    assert (table.raw, table.special) == ({2: "e2"}, [0])
