"""Ledger: the events of a producer, written behind its sends, so that a reconciliation compares what was sent with what was consumed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ackwise.middleware.errors import EventLogUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.middleware.outgoing import Acked, Outgoing, SendFailed
from ackwise.plugin.client.logthrottle import LogThrottle

__all__ = ["Ledger"]

log = Log()


class Ledger:
    """Records what became of messages in `sink`. A send does not wait for that: an event that a crash costs is one that nobody claims."""

    def __init__(self, sink: EventSink | None) -> None:
        self._sink = sink
        self._flushing: asyncio.Task[None] | None = None
        self._is_behind = False
        self._throttle = LogThrottle()

    async def open(self) -> None:
        """Open the sink. Raises `EventLogUnavailable` or `ConfigurationError`."""
        if self._sink is not None:
            await self._sink.open()

    async def close(self) -> None:
        """Make durable what was recorded, and close the sink."""
        if self._sink is None:
            return
        if self._flushing is not None:
            await asyncio.wait({self._flushing})
        await self._flush(self._sink)
        await self._sink.close()

    def record(self, messages: Sequence[Outgoing], answers: Sequence[object]) -> None:
        """Record the answers to `messages` that the caller is told now; one that was saved to the outbox is its relay's to record."""
        if self._sink is None:
            return
        for message, answer in zip(messages, answers, strict=True):
            if (event := _event(message, answer)) is not None:
                self._sink.record(event)
        self._is_behind = True
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.create_task(self._catch_up(self._sink), name="ackwise producer events")

    async def _catch_up(self, sink: EventSink) -> None:
        while self._is_behind:
            self._is_behind = False
            if not await self._flush(sink):
                return

    async def _flush(self, sink: EventSink) -> bool:
        try:
            await sink.flush()
        except EventLogUnavailable as error:
            if self._throttle.is_due():
                log.warning("the events of a producer are not durable, they are tried again with the next ones", error=said(error))
            return False
        return True


def _event(message: Outgoing, answer: object) -> Event | None:
    match answer:
        case Acked(topic, partition, offset, timestamp, message_id):
            place = None if offset < 0 else offset
            return Event(EventCode.PRODUCED, topic, partition, place, record_ts_ms=timestamp, dedup_key=message_id)
        case SendFailed(error=error):
            return Event(EventCode.PRODUCE_FAILED, message.topic, dedup_key=message.message_id, error=error or "NotTried")
    return None
