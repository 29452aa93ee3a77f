"""Where an assigned partition goes on: at what the group committed, at what the database has passed, or at the start that is configured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, for_code
from aiokafka.protocol.commit import OffsetFetchRequest

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.log import Log, said
from ackwise.middleware.transaction import OffsetsStore, Progress
from ackwise.plugin.member import Member

__all__ = ["Position", "Positions"]

log = Log()

T = TypeVar("T")

#: Looks at the end of a log, half a second apart, until it is believed to end before what the database has passed.
_LOOKS_AT_END = 10


class Position(NamedTuple):
    """Where a partition goes on."""

    next: int
    committed: int | None  #: the offset that the broker has of this group
    generation: int | None = None  #: of the offset in the database, if it is kept there


class Positions:
    """What the broker, and the database of `Transactional(mode="offsets")`, say about where partitions go on.

    An answer that does not come is waited for: beginning somewhere else would lose messages.
    """

    def __init__(self, member: Member, consumer: AIOKafkaConsumer) -> None:
        self._member = member
        self._consumer = consumer

    async def find(self, partition: TopicPartition) -> Position:
        """Where `partition` goes on. Raises `ConfigurationError` if its log ends before what the database has passed."""
        committed = await self._insist(self.committed, partition)
        position = committed if committed is not None else await self._insist(self.start_of, partition)
        offsets = self._member.offsets
        generation = None
        if offsets is not None and partition.topic != self._member.names.retry:
            position, generation = await self.take_over(offsets, partition, position, is_new=committed is None)
        return Position(await self._within_log(partition, position), committed, generation)

    async def _within_log(self, partition: TopicPartition, position: int) -> int:
        """`position`, or the start of the log if that does not have it any more, or not yet.

        A log that ends before what was read lost its end, or was made anew: whatever it has may be new, and is read. RocketMQ's
        consumer goes to the end (`correctLogicOffset`), which would lose what was written meanwhile.
        """
        looks = 1
        while True:
            start, end = await self._insist(self._beginning_of, partition), await self._insist(self._end_of, partition)
            if start <= position <= end:
                return position
            if position < start or looks == _LOOKS_AT_END:  # a new leader may not know its end at once
                break
            looks += 1
            await asyncio.sleep(0.5)
        log.error(
            "the position is outside of what the topic holds, reading goes on elsewhere",
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
            log_start=start,
            log_end=end,
            goes_on_at=start,
        )
        attrs = json.dumps({"reason": "out-of-range", "goes_on_at": start})
        self._member.record(Event(EventCode.SEEK, *partition, min(position, start), range_end=max(position, start), attrs=attrs))
        return start

    async def committed(self, partition: TopicPartition) -> int | None:
        """The committed offset; `None` only if the coordinator itself says that there is none. Raises `KafkaError`.

        aiokafka overlooks an error that is about the whole answer, such as a coordinator that is still loading, and
        takes it for "nothing was committed": the group would begin somewhere else, and commit that.
        """
        offset: int | None = await self._consumer.committed(partition)
        if offset is not None:
            return offset
        request = OffsetFetchRequest(self._member.settings.group, [(partition.topic, [partition.partition])])
        coordinator: Any = self._consumer._coordinator
        answer = await coordinator._send_req(request)
        found = [(offset, code) for _, partitions in answer.topics for _, offset, _, code in partitions]
        for code in (answer.error_code, *(code for _, code in found)):
            if code:
                raise for_code(code)
        return next((offset for offset, _ in found if offset >= 0), None)

    async def start_of(self, partition: TopicPartition) -> int:
        """Retry topics begin at their earliest record, or retries that were sent before would be missed. Raises `KafkaError`."""
        earliest = partition.topic == self._member.names.retry or self._member.settings.start == "earliest"
        offsets = await self._consumer.beginning_offsets([partition]) if earliest else await self._consumer.end_offsets([partition])
        return int(offsets[partition])

    async def take_over(self, offsets: OffsetsStore, partition: TopicPartition, position: int, *, is_new: bool) -> Progress:
        """Where the database says that its partition goes on; `position` is what the broker says, which is told later.

        `is_new`: the broker has no offset of this group. Raises `ConfigurationError` if the log ends before that.
        """
        while True:
            try:
                progress = await offsets.take_over(self._member.owner, *partition, position=position)
            except StoreUnavailable as error:
                log.warning(
                    "the offset of a partition can't be taken over, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)
                continue
            if progress.next > position:
                await self._require_log(partition, progress.next)
                if is_new:
                    log.warning(
                        "the broker has no offset of a partition that the database has passed, the database is believed",
                        topic=partition.topic,
                        partition=partition.partition,
                        offset=progress.next,
                    )
                self._member.record(Event(EventCode.TX_SETTLED, *partition, position, range_end=progress.next))
                await self._insist_on_events(partition)
            elif progress.next < position:
                log.warning(
                    "the database is behind the broker, its messages from there on are run again",
                    topic=partition.topic,
                    partition=partition.partition,
                    committed=position,
                    offset=progress.next,
                )
            return progress

    async def _require_log(self, partition: TopicPartition, passed: int) -> None:
        """What the database has passed must be in the log, or it speaks of another. A new leader may not know its end at once."""
        looks = 1
        while passed > (end := await self._insist(self._end_of, partition)) and looks < _LOOKS_AT_END:
            looks += 1
            await asyncio.sleep(0.5)
        if passed <= end:
            return
        raise ConfigurationError(
            f"the database says that {partition.topic}/{partition.partition} goes on at {passed}, and its log ends at {end}: the topic was "
            "made anew, or lost its end; raise epoch of Transactional, and everything that is in the topics is run"
        )

    async def _beginning_of(self, partition: TopicPartition) -> int:
        return int((await self._consumer.beginning_offsets([partition]))[partition])

    async def _end_of(self, partition: TopicPartition) -> int:
        return int((await self._consumer.end_offsets([partition]))[partition])

    async def _insist_on_events(self, partition: TopicPartition) -> None:
        """Wait until they are durable: the broker is told next what they say, and nobody would say it again."""
        while self._member.sink is not None:
            try:
                await self._member.sink.flush()
            except EventLogUnavailable as error:
                log.warning(
                    "what a partition has passed can't be exported, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)
            else:
                return

    async def _insist(self, call: Callable[[TopicPartition], Awaitable[T]], partition: TopicPartition) -> T:
        while True:
            try:
                return await call(partition)
            except KafkaError as error:
                log.warning(
                    "the position of a partition can't be read, trying again",
                    topic=partition.topic,
                    partition=partition.partition,
                    error=said(error),
                    retry_in=0.5,
                )
                await asyncio.sleep(0.5)
