"""Tasks of a member beside its handlers: each one that fails is reported, and none is left when the member ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.log import Log

log = Log()

#: Seconds until our task starts again that something else has cancelled.
_BEGIN_ANEW: Final = 1.0


class Tasks:
    """The tasks of one member of `group`. `failed` is called with what one of them raised, and its name."""

    def __init__(self, group: str, failed: Callable[[BaseException, str], None]) -> None:
        self._group = group
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_ending = False  #: from now on tasks are cancelled by us

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Do `work` beside the rest, until `end` at the latest."""
        task = asyncio.create_task(work, name=f"ackwise {name}")
        self.detach(task)
        return task

    def keep(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Do `work` beside the rest, again whenever something else than we has cancelled it: a client may leak its own cancellation."""
        self.spawn(self._lasting(work, name), name)

    def detach(self, task: asyncio.Task[None]) -> None:
        """`task` is not awaited; its failure is reported all the same."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(self._ended)

    def expect_end(self) -> None:
        """From now on a cancelled task was cancelled by us, and has not failed."""
        self._is_ending = True

    async def end(self, *, within: float) -> None:
        """Cancel all tasks and wait for them for at most `within` seconds."""
        for task in (tasks := set(self._tasks)):
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=within)
            if left:
                names = ", ".join(sorted(task.get_name() for task in left))
                log.warning("cancelled tasks did not end", group=self._group, tasks=names)

    async def _lasting(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        while True:
            task = asyncio.create_task(work(), name=f"ackwise {name}")
            try:
                await asyncio.wait({task})
            finally:
                task.cancel()
            if not task.cancelled():
                return task.result()
            log.warning(
                "task was cancelled from outside",
                group=self._group,
                task=task.get_name(),
                retry_in=_BEGIN_ANEW,
            )
            await asyncio.sleep(_BEGIN_ANEW)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """One that was cancelled, and not by us, has failed as well."""
        if self._is_ending and task.cancelled():
            return
        error: BaseException | None = _Cancelled(task.get_name()) if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error, task.get_name())


class _Cancelled(AckwiseError):
    """A task of ours was cancelled by something else than Ackwise."""

    def __init__(self, task: str) -> None:
        super().__init__(f"something else than Ackwise has cancelled {task!r}; the worker stops, and what is not settled comes again")
