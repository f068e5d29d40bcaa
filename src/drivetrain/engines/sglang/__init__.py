"""SGLang as the engine: a trainer's ``sglang.launch_server``, one or several of them."""

from drivetrain.engines.sglang.engine import SGLangEngine

__all__ = ["SGLangEngine"]
