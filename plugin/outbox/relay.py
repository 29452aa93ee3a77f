"""The relay of an outbox: sends the rows of its shards, in a worker or alone, for as long as it runs.

Each stay (`stay.py`) has a producer of its own: whatever ends a stay, nothing of it is sent any more once its shards are free.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

from ackwise.middleware.errors import AckwiseError, ConfigurationError, Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.outbox import RelayStore
from ackwise.middleware.outgoing import MessageSender
from ackwise.middleware.policies import Outbox
from ackwise.middleware.tracebacks import where_raised
from ackwise.plugin.client.bounded import ended
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.group.outboxcounts import OutboxCounts
from ackwise.plugin.outbox.memory import AckMemory
from ackwise.plugin.outbox.stay import LeaseOver, OutboxStay, Surroundings

__all__ = ["OpenSender", "OutboxRelay"]

log = Log()

#: Seconds until a stay that ended is begun anew, doubling up to the second; one that lasted for the third was a good one.
_BEGIN_ANEW: Final = (1.0, 10.0)
_LASTED: Final = 60.0

#: Seconds after a stop for what is being sent to be acknowledged and deleted, for the producer to close, and for the shards to be freed.
_DRAIN, _CLOSE, _LEAVE = 8.0, 3.0, 2.0

#: Seconds for a task that was cancelled.
_CANCEL: Final = 3.0


class OpenSender(MessageSender, Protocol):
    """A sender that connects, and closes."""

    async def start(self) -> None:
        """Connect. Raises `Unavailable` if no broker answers, `ConfigurationError` for options that can't be used."""

    async def stop(self) -> None:
        """Close in bounded time; nothing is sent after that. Raises nothing of the client's."""


class OutboxRelay:
    """Relays the rows of `store`, which is open, for as long as `run` goes."""

    def __init__(
        self,
        store: RelayStore,
        policy: Outbox,
        *,
        name: str,
        new_sender: Callable[[], OpenSender],
        brokers_answer: Callable[[], Awaitable[bool]],
        sink: EventSink | None = None,
        counts: OutboxCounts | None = None,
        is_alone: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is that of the outbox in events and in the log. With `is_alone`, what keeps it from its first stay for good is raised."""
        self._store = store
        self._new_sender = new_sender
        self._is_alone = is_alone
        self._clock = clock
        self._around = Surroundings(
            name=name,
            owner=_new_owner(),
            policy=policy,
            brokers_answer=brokers_answer,
            sink=sink,
            counts=counts or OutboxCounts(),
            memory=AckMemory(),
            throttle=LogThrottle(),
            clock=clock,
        )
        self._has_owned = False

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent is acknowledged and deleted, or left, and the shards are free.

        Whatever ends a stay, another one begins. Raises `ConfigurationError` if the relay is alone and can't begin at all. Stopping takes
        bounded time, whatever hangs.
        """
        rest = _BEGIN_ANEW[0]
        self._around.counts.relaying = True
        try:
            while not stop.is_set():
                begun = self._clock()
                ended_by = await self._stay(stop)
                if ended_by is None:
                    return
                if self._is_alone and not self._has_owned and isinstance(ended_by, ConfigurationError):
                    raise ended_by
                rest = _BEGIN_ANEW[0] if self._clock() - begun > _LASTED else rest
                self._log_end(ended_by, rest)
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest):
                        await stop.wait()
                rest = min(2 * rest, _BEGIN_ANEW[1])
        finally:
            self._around.counts.relaying = False

    async def _stay(self, stop: asyncio.Event) -> BaseException | None:
        """One stay, in tasks of its own; returns what ended it, `None` if that was the stop."""
        try:
            sender = self._new_sender()
            await sender.start()
        except Exception as error:  # noqa: BLE001  # whatever it was, nothing was begun
            return error
        stay = OutboxStay(self._store, sender, self._around)
        relaying = asyncio.create_task(stay.relay(stop), name="ackwise outbox relay")
        keeping = asyncio.create_task(stay.keep_lease(), name="ackwise outbox lease")
        stopping = asyncio.create_task(stop.wait(), name="ackwise outbox stop")
        try:
            await asyncio.wait({relaying, keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not (relaying.done() or keeping.done()):
                await asyncio.wait({relaying, keeping}, timeout=_DRAIN, return_when=asyncio.FIRST_COMPLETED)
            self._has_owned |= bool(self._around.counts.shards)
            return next((_end_of(task) for task in (relaying, keeping) if task.done()), None)
        finally:
            await self._end(sender, relaying, keeping, stopping)

    async def _end(self, sender: OpenSender, *tasks: asyncio.Task[Any]) -> None:
        """Nothing is sent any more, then the shards are free. Two signals or an error don't wait longer than these few seconds."""
        for task in tasks:
            task.cancel()
        try:
            await asyncio.wait(tasks, timeout=_CANCEL)
        finally:
            closing = asyncio.ensure_future(self._close(sender))
            try:
                await asyncio.wait([closing])
            except asyncio.CancelledError:  # of the second signal, which comes while the first one is obeyed
                await asyncio.wait([closing])
                raise
            closing.result()

    async def _close(self, sender: OpenSender) -> None:
        await ended(sender.stop(), within=_CLOSE)
        self._around.counts.shards = 0
        with suppress(Unavailable):  # then the lease ends by itself
            await ended(self._store.leave(self._around.owner), within=_LEAVE)

    def _log_end(self, ended_by: BaseException, rest: float) -> None:
        around, outbox = self._around, self._around.name
        match ended_by:
            case ConfigurationError():
                if around.throttle.is_due("refused"):
                    log.error("the relay of the outbox is refused, its rows wait until this changes", outbox=outbox, error=str(ended_by))
            case LeaseOver():
                log.warning(
                    "the lease of the outbox's shards ran out here, nothing is lost and it begins anew", outbox=outbox, retry_in=rest
                )
            case AckwiseError():
                if around.throttle.is_due(type(ended_by).__name__):
                    log.warning(
                        "the relay of the outbox can't go on, its rows wait and nothing is lost", outbox=outbox, error=said(ended_by),
                        retry_in=rest,
                    )  # fmt: skip
            case _:
                log.error(
                    "the relay of the outbox ended by an error that nobody expects, nothing is lost and it begins anew",
                    outbox=outbox,
                    error=type(ended_by).__name__,  # of such an error nobody knows whose words its text has
                    at=where_raised(ended_by),
                    retry_in=rest,
                )


def _new_owner() -> str:
    """Who the relay is: another one in each process, so that a process that was replaced has no tokens that count."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _end_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
