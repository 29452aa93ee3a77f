"""Caller: a thread that makes the blocking calls of one client, one after the other."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

__all__ = ["Caller"]

T = TypeVar("T")


class Caller:
    """Calls what it is given in a thread of its own. The thread ends with the process, whatever a call waits for."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` returns or raises, once all that was asked for before is done. A future that is cancelled stops no call."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._calls.put((work, future))
        return future

    def end(self) -> None:
        """Let the thread end after what was asked for."""
        self._calls.put(None)

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            work, future = asked
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001  # it is raised where the answer is awaited
                error = raised
            with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(_answer, future, result, error)


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
