"""A rollout on a loop of its own while the trainer's model steps run on the thread that called.

OpenEnv's adapters are called synchronously, often from the trainer's main thread, and a ``ModelStep`` may use what
belongs to that thread (a CUDA context, a lock, an event loop that must not be running elsewhere).
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

_END_PATIENCE_S = 60.0
"""How long an interrupted caller waits for sandboxes to be closed."""


class CallerSteps:
    """A ``ModelStep`` that is carried out by :meth:`run`'s caller, one at a time, in order.

    Args:
        step: the trainer's own.
    """

    def __init__(self, step: Callable[..., Any]) -> None:
        self._step = step
        self._waiting: queue.SimpleQueue[tuple[Future[Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.error: Exception | None = None
        """The first exception a step raised: a defect of the trainer that a harness can only see as a failed call."""

    def __call__(self, *arguments: Any) -> Any:
        """From any other thread: hand a step over and wait for its result."""
        done: Future[Any] = Future()
        self._waiting.put((done, arguments))
        return done.result()

    def run(self, rollout: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``rollout`` on a loop of its own and its steps here, until it ends; its result or exception.

        An interrupted caller (Ctrl-C) cancels the rollout and waits for its clean-up.
        """
        outcome: Future[T] = Future()
        ready: Future[Callable[[], Any]] = Future()

        def work() -> None:
            try:
                outcome.set_result(asyncio.run(_cancellable(rollout, ready)))
            except (asyncio.CancelledError, CancelledError):
                outcome.cancel()
                outcome.set_running_or_notify_cancel()
            except BaseException as error:
                outcome.set_exception(error)
            finally:
                self._waiting.put(None)

        thread = threading.Thread(target=work, name="drivetrain-rollout", daemon=True)
        thread.start()
        try:
            self._serve()
        except BaseException:
            ready.result()()
            self._refuse_until_the_end(thread)
            raise
        thread.join()
        return outcome.result()

    def _serve(self) -> None:
        while (job := self._waiting.get()) is not None:
            done, arguments = job
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(self._step(*arguments))
            except Exception as error:
                self.error = self.error or error
                done.set_exception(error)
            except BaseException as error:  # Ctrl-C in a step: nobody may go on waiting for it
                done.set_exception(RuntimeError("the trainer was interrupted"))
                raise error

    def _refuse_until_the_end(self, thread: threading.Thread) -> None:
        """Answer steps that still come with an error, so that the rollout can end."""
        thread.join(0.01)
        waited = 0.0
        while thread.is_alive() and waited < _END_PATIENCE_S:
            try:
                job = self._waiting.get(timeout=0.1)
            except queue.Empty:
                waited += 0.1
                continue
            if job is None:
                break
            job[0].set_exception(RuntimeError("the trainer was interrupted"))
        thread.join(1.0)


async def _cancellable(rollout: Callable[[], Coroutine[Any, Any, T]], ready: Future[Callable[[], Any]]) -> T:
    task = asyncio.ensure_future(rollout())
    loop = asyncio.get_running_loop()
    ready.set_result(lambda: loop.call_soon_threadsafe(task.cancel))
    return await task
