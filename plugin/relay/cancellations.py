"""Cancellations of a group, as its cancel topic has them: read to the end before anything is brought back."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.internals import look_for_topics
from ackwise.plugin.client.opening import start
from ackwise.plugin.client.rawrecords import fetch_raw
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["PARTITION", "CancelTopic", "Cancellations"]

#: All cancellations are on one partition, however many a topic has that somebody else made.
PARTITION: Final = 0

#: Seconds for a client to connect, for reading what is new, and for letting go of a client.
_START_TIMEOUT, _READ_TIMEOUT, _CLOSE_TIMEOUT = 10.0, 30.0, 2.0


class Cancellations(Protocol):
    """What is cancelled."""

    @property
    def keys(self) -> AbstractSet[bytes]:
        """The keys of cancelled messages, as of the last `read`; see `waiting_copy`."""
        ...

    @property
    def hashes(self) -> AbstractSet[int]:
        """The hashes of `keys`, and perhaps some more."""
        ...

    async def read(self) -> None:
        """Return once `keys` has everything that was acknowledged before this was called. Raises `KafkaError` or `OSError`."""


class CancelTopic:
    """The cancellations in the topic of a group. It has a client of its own: the relay's own connection waits for copies.

    A record without a value takes back what an earlier one with its key has cancelled.
    """

    def __init__(self, settings: HostSettings, topic: str) -> None:
        self._settings = settings
        self._partition = TopicPartition(topic, PARTITION)
        self._consumer: AIOKafkaConsumer | None = None
        self._position: int | None = None
        self._keys: set[bytes] = set()
        self._hashes: set[int] = set()
        self._reading = asyncio.Lock()
        self._begun = self._done = 0

    @property
    def keys(self) -> AbstractSet[bytes]:
        """See `Cancellations`."""
        return self._keys

    @property
    def hashes(self) -> AbstractSet[int]:
        """See `Cancellations`."""
        return self._hashes

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
                self._position = None  # it was made anew, or what was there is deleted
                self._keys.clear()
                raise
            except BaseException:
                self._learn_anew()
                raise
            self._done = number

    async def close(self) -> None:
        """Let go of the client. Raises nothing of the client's."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await close_consumer(consumer, within=_CLOSE_TIMEOUT)

    async def _read_to_end(self) -> None:
        consumer = await self._connected()
        position = self._position
        if position is None:
            position = self._position = int((await consumer.beginning_offsets([self._partition]))[self._partition])
        while True:
            found = await fetch_raw(consumer, self._partition, position, wait_ms=0)
            if not found.raw:
                return
            reading: Any = found.records()
            for record in reading:
                self._take(record)
            if reading.next_fetch_offset == position:
                raise KafkaError(f"topic {self._partition.topic!r} can't be read on at offset {position}")
            position = self._position = reading.next_fetch_offset

    def _take(self, record: Any) -> None:
        if record.key is None:
            return
        if record.value is None:
            self._keys.discard(record.key)
        else:
            self._keys.add(record.key)
            self._hashes.add(hash(record.key))

    async def _connected(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            options: dict[str, Any] = dict(self._settings.client_options)
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._settings.brokers,
                client_id=f"{self._settings.client_id}-cancel-relay",
                enable_auto_commit=False,
                **options,
            )
            is_connected = False
            try:
                await answer(start(consumer), within=_START_TIMEOUT)
                is_connected = True
            finally:
                if not is_connected:
                    await close_consumer(consumer, within=_CLOSE_TIMEOUT)
            self._consumer = consumer
        return self._consumer

    def _learn_anew(self) -> None:
        """The partition may have another leader by now."""
        if self._consumer is not None:
            look_for_topics(self._consumer)
