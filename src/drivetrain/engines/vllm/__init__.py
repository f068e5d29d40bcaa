"""vLLM as the engine: a trainer's ``vllm serve``, one or several of them."""

from drivetrain.engines.vllm.engine import VLLMEngine

__all__ = ["VLLMEngine"]
