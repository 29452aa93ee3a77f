"""`Running`: a worker that runs next to other work of this process, such as a web application."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Running:
    """The worker of `app.running()`. `has_joined` is set when it has joined its group."""

    def __init__(self, work: Coroutine[Any, Any, None], has_joined: asyncio.Event) -> None:
        self._has_joined = has_joined
        self._task = asyncio.create_task(_outcome(work), name="ackwise worker")

    @property
    def is_ready(self) -> bool:
        """Return True if it runs and is a member of its group, possibly without partitions."""
        return self._has_joined.is_set() and not self._task.done()

    @property
    def error(self) -> BaseException | None:
        """The error that ended it, if any."""
        return self._task.result() if self._task.done() and not self._task.cancelled() else None

    async def ready(self) -> None:
        """Return once it is a member of its group. While brokers are unavailable it waits for `start_timeout` at most.

        Raises as `App.serve` if the worker ends before that.
        """
        joined = asyncio.create_task(self._has_joined.wait())
        try:
            await asyncio.wait({joined, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
        if self._task.done():
            await self.ended()

    async def ended(self) -> None:
        """Wait for its end. Raises as `App.serve`."""
        await asyncio.wait({self._task})
        if (error := self._task.result()) is not None:
            raise error

    async def close(self) -> None:
        """Wait for its end; a cancellation cancels the worker."""
        try:
            await asyncio.wait({self._task})
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait({self._task})
            raise


async def _outcome(work: Coroutine[Any, Any, None]) -> BaseException | None:
    """Return the exception of `work`: a task that raises `SystemExit` would stop the event loop."""
    try:
        await work
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # it is raised in the waiting caller
        return error
    return None
