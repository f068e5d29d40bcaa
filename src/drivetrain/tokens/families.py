"""How each template family closes an assistant turn, as data.

Every entry restates what the family's published chat template writes behind an assistant's words, and which of those
tokens its models stop on (``eos_token_id`` of the published ``generation_config.json``). Nothing here is trusted: an
entry is compared with the actual template and tokenizer when a model is loaded (:mod:`drivetrain.tokens.boundary`).
"""

from __future__ import annotations

import msgspec


class Close(msgspec.Struct, frozen=True):
    """A token at which an assistant turn is over.

    ``after`` is what the template writes between this token and the next message. ``header`` marks a token that is no
    end of its own but the first token of the next message, on which the policy stops (GLM): where the next message
    begins with it, it must not be written twice. ``stop`` is False for a token the policy writes *inside* a turn as
    well (harmony ends its analysis with ``<|end|>`` and speaks on), so that generation must not stop there.
    """

    token: str
    after: str = ""
    header: bool = False
    stop: bool = True


class Family(msgspec.Struct, frozen=True):
    """A template family.

    The first of ``closes`` follows a text answer in mid-conversation. ``before_close`` is text the policy itself says
    last (Cohere's response marker); it completes a turn that was cut. ``last`` is what follows the very last answer
    where that differs (harmony's ``<|return|>``).
    """

    name: str
    closes: tuple[Close, ...]
    before_close: str = ""
    last: str | None = None

    @property
    def close_token(self) -> str:
        """The token that closes a text answer."""
        return self.closes[0].token

    @property
    def after_close(self) -> str:
        """Text the template writes between that token and the next message."""
        return self.closes[0].after

    @property
    def mid_closing(self) -> str:
        """Text behind an answer that another message follows."""
        return self.before_close + self.close_token + self.after_close

    @property
    def last_closings(self) -> tuple[str, ...]:
        """Texts that may stand behind the last answer of a conversation."""
        if self.last is not None:
            return (self.last,)
        if self.closes[0].header:  # training variants write the header on which the policy stops
            return (self.before_close, self.mid_closing)
        return (self.mid_closing,)


def _family(name: str, *closes: Close, before_close: str = "", last: str | None = None) -> Family:
    return Family(name, closes, before_close, last)


FAMILIES: tuple[Family, ...] = (
    # Qwen2.5 and later, SmolLM2/3, Hermes, LFM2, Nemotron 3
    _family("chatml", Close("<|im_end|>", "\n")),
    # Kimi K2: ChatML's token, but nothing behind it
    _family("kimi", Close("<|im_end|>")),
    # Llama 3.x; <|eom_id|> ends a turn that waits for a built-in tool
    _family("llama3", Close("<|eot_id|>"), Close("<|eom_id|>")),
    # Mistral, Ministral
    _family("mistral", Close("</s>")),
    # LLaVA on Mistral
    _family("llava", Close("</s>", " ")),
    # Gemma 1 to 3
    _family("gemma", Close("<end_of_turn>", "\n")),
    # Gemma 4: a turn with calls is left open, the model stops on the token that begins the answer to them
    _family("gemma4", Close("<turn|>", "\n"), Close("<|tool_response>", header=True)),
    # Phi-3, Phi-3.5
    _family("phi", Close("<|end|>", "\n")),
    # Phi-4-mini
    _family("phi4", Close("<|end|>")),
    # DeepSeek V3, R1 and its distillations
    _family("deepseek", Close("<｜end▁of▁sentence｜>")),
    # Command R; Command R7B and A, which mark the answer
    _family("cohere", Close("<|END_OF_TURN_TOKEN|>")),
    _family("cohere2", Close("<|END_OF_TURN_TOKEN|>"), before_close="<|END_RESPONSE|>"),
    # Granite 3 and 4
    _family("granite", Close("<|end_of_text|>", "\n")),
    # Nemotron Nano 2, which ends its words with a line break
    _family("nemotron_nano", Close("<SPECIAL_12>", "\n"), before_close="\n"),
    # Seed-OSS
    _family("seed", Close("<seed:eos>")),
    # MiniMax M2
    _family("minimax", Close("[e~[", "\n")),
    # GLM 4.x: no end of its own; the model stops on the next message's header
    _family(
        "glm",
        Close("<|user|>", header=True),
        Close("<|observation|>", header=True),
        Close("<|system|>", header=True, stop=False),
        Close("<|assistant|>", header=True, stop=False),
    ),
    # GPT-OSS (harmony response format)
    _family("harmony", Close("<|end|>", stop=False), Close("<|return|>"), Close("<|call|>"), last="<|return|>"),
    # Muse: <|eom|> parts the messages of one turn
    _family("muse", Close("<|eot|>"), Close("<|eom|>", stop=False)),
    # Idefics 3, SmolVLM
    _family("idefics", Close("<end_of_utterance>", "\n")),
)
