"""The APIs harnesses speak: ``decode(body) -> Call`` and ``encode(Reply)``."""
