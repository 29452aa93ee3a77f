"""Cancellations of a group, as partition 0 of its delay topic has them: read to the end before each batch of moves."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from typing import Any, Final, Protocol

from aiokafka import TopicPartition

from ackwise.middleware.ladder import CANCELLATIONS
from ackwise.middleware.log import Log
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.reading import TopicReader, Unreadable
from ackwise.plugin.group.topics import connected
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["CANCELLED", "CancelPartition", "Cancellations"]

log = Log()

#: What a cancellation says besides its key; whoever takes it back writes no value.
CANCELLED: Final = b'{"version": 1}'

#: Seconds for reading what is new.
_READ_TIMEOUT: Final = 30.0


class Cancellations(Protocol):
    """What is cancelled."""

    @property
    def keys(self) -> AbstractSet[bytes]:
        """The keys of cancelled messages, as of the last `read`; see `waiting_copy`."""
        ...

    async def read(self) -> None:
        """Return once `keys` has everything that was acknowledged before this was called. Raises `AckwiseError` or `KafkaError`."""

    async def close(self) -> None:
        """Let go of what is open. Raises nothing."""


class CancelPartition:
    """The cancellations in the delay topic of a group. It has a client of its own: the relay's own connection waits for copies.

    A record without a value takes back what an earlier one with its key has cancelled. What the log does not have any more is forgotten: it
    is kept for longer than a copy waits on one rung.
    """

    def __init__(self, settings: HostSettings, topic: str) -> None:
        self._settings = settings
        self._partition = TopicPartition(topic, CANCELLATIONS)
        self._open = AsyncExitStack()
        self._reader: TopicReader | None = None
        self._position: int | None = None
        self._keys: dict[bytes, int] = {}  #: with the offset of each
        self._starts_at = 0  #: the first offset of the log
        self._throttle = LogThrottle()
        self._reading = asyncio.Lock()
        self._begun = self._done = 0

    @property
    def keys(self) -> AbstractSet[bytes]:
        """See `Cancellations`."""
        return self._keys.keys()

    async def read(self) -> None:
        """See `Cancellations`. Those who call while it is read share the next reading, since this one may have begun too early."""
        wanted = self._begun + 1
        async with self._reading:
            if self._done >= wanted:
                return
            self._begun += 1
            number = self._begun
            try:
                await answer(self._read_to_end(), within=_READ_TIMEOUT)
            except BaseException as error:
                if isinstance(error, Unreadable):  # it was made anew, or what was there is deleted
                    self._position, self._starts_at = None, 0
                    self._keys.clear()
                await self.close()  # the next one finds who leads by then
                raise
            self._done = number

    async def close(self) -> None:
        """See `Cancellations`."""
        opened, self._open, self._reader = self._open, AsyncExitStack(), None
        await opened.aclose()

    async def _read_to_end(self) -> None:
        if self._reader is None:
            admin = await self._open.enter_async_context(connected(self._settings, "cancel-relay"))
            self._reader = TopicReader(admin, committed=False, patience=0.0)
        reader, place = self._reader, self._partition
        start, end = (await reader.bounds([place]))[place]
        if self._position is None:
            self._position = start
        if not start <= self._position <= end:
            raise Unreadable(f"{place.topic}/{place.partition} has offsets from {start} to {end}, and was read to {self._position}")
        self._forget(start)
        async for record in reader.records(place, self._position, end):
            self._take(record)
        self._position = end

    def _forget(self, starts_at: int) -> None:
        """Forget what stood before the first offset of the log."""
        if starts_at > self._starts_at:
            self._keys = {key: offset for key, offset in self._keys.items() if offset >= starts_at}
            self._starts_at = starts_at

    def _take(self, record: Any) -> None:
        if record.key is not None and record.value is None:
            self._keys.pop(record.key, None)
        elif record.key is not None and record.value == CANCELLED:
            self._keys[record.key] = record.offset
        elif self._throttle.is_due():
            log.error(
                "a record among the cancellations is none and is passed over; nothing else may be written to this partition",
                topic=self._partition.topic,
                partition=self._partition.partition,
                offset=record.offset,
            )
