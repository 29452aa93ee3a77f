"""Cancellations of a group, as partition 0 of its delay topic has them: read to the end before each batch of moves."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from ackwise.middleware.ladder import CANCELLATIONS
from ackwise.middleware.log import Log
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.internals import look_for_topics
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.opening import start
from ackwise.plugin.client.rawrecords import fetch_raw
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["CANCELLED", "CancelPartition", "Cancellations"]

log = Log()

#: What a cancellation says besides its key; whoever takes it back writes no value.
CANCELLED: Final = b'{"version": 1}'

#: Seconds for a client to connect and to find the start, for reading what is new, and for letting go of a client.
_START_TIMEOUT, _READ_TIMEOUT, _CLOSE_TIMEOUT = 10.0, 30.0, 2.0


class Cancellations(Protocol):
    """What is cancelled."""

    @property
    def keys(self) -> AbstractSet[bytes]:
        """The keys of cancelled messages, as of the last `read`; see `waiting_copy`."""
        ...

    async def read(self) -> None:
        """Return once `keys` has everything that was acknowledged before this was called. Raises `KafkaError` or `OSError`."""

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
        self._consumer: AIOKafkaConsumer | None = None
        self._connecting: AIOKafkaConsumer | None = None  #: what a reading that was given up may have left
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
            except OffsetOutOfRangeError:
                self._position, self._starts_at = None, 0  # it was made anew, or what was there is deleted
                self._keys.clear()
                raise
            except BaseException:
                self._learn_anew()
                raise
            self._done = number

    async def close(self) -> None:
        """Let go of the client. Raises nothing of the client's."""
        for consumer in {self._consumer, self._connecting} - {None}:
            await close_consumer(consumer, within=_CLOSE_TIMEOUT)
        self._consumer = self._connecting = None

    async def _read_to_end(self) -> None:
        consumer = await self._connected()
        position = self._position
        if position is None:
            found = await answer(consumer.beginning_offsets([self._partition]), within=_START_TIMEOUT)
            position = self._position = int(found[self._partition])
        while True:
            fetched = await fetch_raw(consumer, self._partition, position, wait_ms=0)
            self._forget(fetched.starts_at)
            if not fetched.raw:
                return
            reading: Any = fetched.records()
            for record in reading:
                self._take(record)
            if reading.next_fetch_offset == position:
                raise KafkaError(f"topic {self._partition.topic!r} can't be read on at offset {position}")
            position = self._position = reading.next_fetch_offset

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

    async def _connected(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            options: dict[str, Any] = dict(self._settings.client_options)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._settings.brokers,
                client_id=f"{self._settings.client_id}-cancel-relay",
                enable_auto_commit=False,
                **options,
            )
            self._connecting, is_connected = consumer, False
            try:
                await answer(start(consumer), within=_START_TIMEOUT)
                is_connected = True
            finally:
                if not is_connected:
                    await close_consumer(consumer, within=_CLOSE_TIMEOUT)
            self._consumer, self._connecting = consumer, None
        return self._consumer

    def _learn_anew(self) -> None:
        """The partition may have another leader by now."""
        if self._consumer is not None:
            look_for_topics(self._consumer)
