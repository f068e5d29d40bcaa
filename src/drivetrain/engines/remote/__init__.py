"""Engines behind HTTP: addresses, one connection pool, several replicas, typed errors.

What an engine of this kind builds on::

    client = RemoteClient(["http://127.0.0.1:8000"], api_key=key)
    await client.open()
    await client.wait_ready(deadline_s=600, tell=print)
    reply = await client.post("/v1/completions", body, reply=MyStruct, session_id=..., request_id=...)
    await client.each("POST", "/reset_prefix_cache")
    await client.aclose()

* :class:`RemoteClient`: ``post`` and ``get`` (one replica, JSON decoded into a msgspec type), ``each`` (every replica,
  all or an error), ``wait_ready``. Cancelling the awaiting task closes the connection.
* :class:`Replicas`: which server a call goes to; calls of one session go to one server while it is up.
* :func:`error_of_reply`, :func:`as_overflow`: what a status and its body mean.
"""

from drivetrain.engines.remote.address import base_urls
from drivetrain.engines.remote.client import RemoteClient
from drivetrain.engines.remote.errors import as_overflow, error_of_reply, says_overflow
from drivetrain.engines.remote.replicas import Replica, Replicas

__all__ = ["RemoteClient", "Replica", "Replicas", "as_overflow", "base_urls", "error_of_reply", "says_overflow"]
