"""The environment as an OpenEnv server: episodes in sandboxes behind ``reset`` and ``step``.

Needs the ``openenv`` extra; nothing here is imported by the rest of the package.
"""
