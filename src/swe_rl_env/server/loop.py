"""An event loop in a thread: a sandbox belongs to one loop, and OpenEnv calls from many threads and its own loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from drivetrain.errors import ConfigError
from drivetrain.sandboxes.end import end

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for callers that block and for callers that await; started by the first of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._gate = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._calls: set[asyncio.Task[Any]] = set()

    @property
    def started(self) -> bool:
        """Whether there is a thread to end, in this process."""
        return self._loop is not None and os.getpid() == self._pid

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` to its end while this thread waits; an interrupted wait (Ctrl-C) cancels it.

        Raises:
            ConfigError: called on the loop itself, which would wait for ever, or in a forked process.
        """
        if threading.current_thread() is self._thread:
            raise ConfigError("A blocking call from the loop that has to do the work would wait for ever.")
        future = self._submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` to its end while the caller's loop goes on; cancelling the caller cancels it."""
        return await asyncio.wrap_future(self._submit(work))

    async def end_calls(self) -> None:
        """On the loop: cancel every other call of :meth:`run` and :meth:`arun`, and wait for its clean-up."""
        await end(*(self._calls - {asyncio.current_task()}))

    def stop(self) -> None:
        """End the thread; idempotent."""
        with self._gate:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or os.getpid() != self._pid:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    def _submit(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        if os.getpid() != self._pid:
            raise ConfigError("Threads do not survive a fork.", fix="Make the environment after the fork.")
        with self._gate:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(self._call(work), self._loop)

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await work()
        finally:
            self._calls.discard(task)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
