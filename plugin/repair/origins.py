"""Origins: reads the records that a plan is about where their producers wrote them, in no group and without commits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, for_code

from ackwise.middleware.errors import ConfigurationError, Unavailable
from ackwise.plugin.client.opening import opened
from ackwise.plugin.group.topics import connected
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["Bounds", "Origins", "reading"]

#: Seconds for which the ends of a log are taken for what they were: asking for each of a thousand steps would take long.
_FRESH: Final = 5.0

#: Records that are passed over rather than fetched anew.
_NEAR: Final = 500

#: Seconds in which the broker must have answered a fetch with anything; what it has not answered is not known.
_TIMEOUT: Final = 30.0
_FETCH_MS: Final = 200


class Bounds(NamedTuple):
    """What a log has: offsets from `start` to before `end`. Records of an open transaction are not in it yet."""

    start: int
    end: int


class Origins:
    """The logs of the source topics; made by `reading`."""

    def __init__(self, consumer: AIOKafkaConsumer, topics: Mapping[str, tuple[int, Collection[int]]]) -> None:
        """`topics` says of each topic that is there what went wrong in asking, and its partitions."""
        self._consumer = consumer
        self._topics = topics
        self._bounds: dict[TopicPartition, tuple[float, Bounds]] = {}
        self._position: tuple[TopicPartition | None, int] = None, 0

    async def bounds(self, partition: TopicPartition) -> Bounds:
        """What the log has; nothing where there is no such partition. Raises `KafkaError`."""
        failure, partitions = self._topics.get(partition.topic, (0, ()))
        if failure:
            raise for_code(failure)
        if partition.partition not in partitions:  # the client would ask for it until it has no time left
            return Bounds(0, 0)
        asked_at, known = self._bounds.get(partition, (-_FRESH, Bounds(0, 0)))
        if time.monotonic() - asked_at < _FRESH:
            return known
        start = await self._consumer.beginning_offsets([partition])
        end = await self._consumer.end_offsets([partition])
        found = Bounds(start[partition], end[partition])
        self._bounds[partition] = time.monotonic(), found
        return found

    async def read(self, partition: TopicPartition, start: int, end: int, most: int) -> tuple[list[ConsumerRecord[Any, Any]], int]:
        """About `most` records of [`start`, `end`), which the log has, and the offset that they go to.

        What is below that and not among them, is not there. Raises `KafkaError`, and `TimeoutError` if the broker does not answer.
        """
        read, through = self._position
        if read != partition:
            self._consumer.assign([partition])
        if read != partition or not through <= start <= through + _NEAR:
            self._consumer.seek(partition, start)
            through = start
        records: list[ConsumerRecord[Any, Any]] = []
        async with asyncio.timeout(_TIMEOUT) as patience:
            while through < end and len(records) < most:
                found = await self._consumer.getmany(
                    partition, timeout_ms=_FETCH_MS, max_records=most - len(records) + max(0, start - through)
                )
                fetched = found.get(partition, [])
                records += [record for record in fetched if start <= record.offset < end]
                position = await self._consumer.position(partition)
                if position > through:
                    patience.reschedule(asyncio.get_running_loop().time() + _TIMEOUT)
                through = max(through, position)
        self._position = partition, through
        return records, min(through, end)


@asynccontextmanager
async def reading(settings: HostSettings) -> AsyncIterator[Origins]:
    """A reader of the logs while the block runs; what the brokers do not answer in it is said in one sentence.

    Raises `ConfigurationError` for options that can't be used, and `Unavailable`.
    """
    options: dict[str, Any] = dict(settings.client_options)
    async with connected(settings) as admin:  # asks for all topics: asking for one by its name might create it
        topics = {each["topic"]: (each["error_code"], _partitions(each)) for each in await admin.describe_topics()}
    try:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=settings.brokers,
            client_id=f"{settings.client_id}-repair",
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            **options,
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"client_options can't be used: {error}") from error
    try:
        async with opened(consumer):
            yield Origins(consumer, topics)
    except (KafkaError, TimeoutError) as error:
        raise Unavailable(
            f"the brokers {settings.brokers!r} do not answer what a plan has to ask ({type(error).__name__}); what was noted as done is "
            "done, start it again to go on"
        ) from error


def _partitions(topic: Mapping[str, Any]) -> frozenset[int]:
    return frozenset(each["partition"] for each in topic["partitions"])
