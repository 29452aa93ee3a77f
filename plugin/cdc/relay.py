"""`CdcRelay`: sends the changes of a source for as long as it runs, one session after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from ackwise.middleware.changes import ChangeSource, SourceBusy
from ackwise.middleware.errors import Unavailable
from ackwise.middleware.events import EventSink
from ackwise.middleware.log import Log, said
from ackwise.plugin.cdc.route import OpenSender, Route
from ackwise.plugin.cdc.session import CdcCounts, CdcSession
from ackwise.plugin.client.bounded import ended
from ackwise.plugin.client.logthrottle import LogThrottle

__all__ = ["CdcRelay"]

log = Log()

#: Seconds until a session that ended is begun anew, doubling up to the second; and until a slot that is in use is tried again.
_BEGIN_ANEW: Final = (0.5, 10.0)
_BUSY: Final = 1.0

#: Seconds after a stop for what is being sent to be acknowledged, and for each part to close.
_DRAIN, _CLOSE = 8.0, 3.0


class CdcRelay:
    """Relays what `source` says through `route`. `new_sender` makes the sender of a session."""

    def __init__(self, source: ChangeSource, route: Route, *, new_sender: Callable[[], OpenSender], sink: EventSink | None = None) -> None:
        self._source, self._route, self._new_sender, self._sink = source, route, new_sender, sink
        self._throttle = LogThrottle()
        self.counts = CdcCounts()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then what is being sent is acknowledged, or read again by the next relay.

        What is away is waited for. Raises what somebody has to mend: `ConfigurationError`, `ChangesLost`, `UnreadableChange` or
        `PublishRefused`. The position stays before what was not acknowledged, whatever ends it.
        """
        rest = _BEGIN_ANEW[0]
        while not stop.is_set():
            sent = self.counts.transactions
            try:
                await self._session(stop)
                return
            except SourceBusy as error:
                rest = _BUSY
                if self._throttle.is_due("busy"):
                    log.info("another relay reads from the slot, this one waits to take over", slot=self._source.name, error=said(error))
            except Unavailable as error:
                rest = _BEGIN_ANEW[0] if self.counts.transactions > sent else min(2 * rest, _BEGIN_ANEW[1])
                if self._throttle.is_due("away"):
                    log.warning(
                        "change data capture was interrupted, it begins again after what was acknowledged last",
                        slot=self._source.name,
                        position=self.counts.position,
                        error=said(error),
                        retry_in=rest,
                    )
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await stop.wait()

    async def _session(self, stop: asyncio.Event) -> None:
        """Open everything and relay. Raises whatever ended it."""
        sender = self._new_sender()
        tasks: list[asyncio.Task[Any]] = []
        try:
            await sender.start()
            await self._route.open()
            await self._source.open()
            self._throttle.reset("away")
            log.info("change data capture reads the log", slot=self._source.name, database=self._source.address)
            session = CdcSession(self._source, self._route, sender, stop=stop, counts=self.counts, throttle=self._throttle, sink=self._sink)
            tasks = [
                asyncio.create_task(session.relay(), name="ackwise change data capture"),
                asyncio.create_task(session.keep(), name="ackwise heartbeat of change data capture"),
            ]
            await self._until_over(tasks, stop)
        finally:
            await _end(tasks)
            await ended(sender.stop(), within=_CLOSE)
            await ended(self._source.close(), within=_CLOSE)

    async def _until_over(self, tasks: list[asyncio.Task[Any]], stop: asyncio.Event) -> None:
        stopping = asyncio.ensure_future(stop.wait())
        try:
            done, _ = await asyncio.wait({*tasks, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if stopping in done and not tasks[0].done():
                await asyncio.wait(tasks[:1], timeout=_DRAIN)
        finally:
            stopping.cancel()
        for task in tasks:
            if task.done():
                task.result()


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel what is left, and wait for it; the error that is on its way says more than those of these."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_CLOSE)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()
