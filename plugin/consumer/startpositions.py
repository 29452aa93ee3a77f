"""Start positions of assigned partitions: what the group committed, what the database has passed, or the configured start."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from ackwise.middleware.errors import ConfigurationError, EventLogUnavailable, StoreUnavailable
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.log import Log, LogThrottle, said
from ackwise.middleware.progress.commitmetadata import CommitMetadata
from ackwise.middleware.storage.transaction import OffsetsStore, Progress, take_over_all
from ackwise.plugin.consumer.commits import Position
from ackwise.plugin.consumer.member import Member
from ackwise.plugin.kafka.brokeroffsets import Asked, Standing, Topic

log = Log()

#: Seconds until brokers, or a database, that could not say where to start are asked again.
ASK_AGAIN: Final = 0.5

#: Looks at the end of a log until it is believed to end before a position in it: a new leader may not know its end at once.
_LOOKS_AT_END = 10


class Positions:
    """What the brokers, and the database of `Transactional(mode="offsets")`, say about where partitions go on.

    Nobody starts anywhere while the answer is "can't say": start somewhere else would lose messages.
    """

    def __init__(self, member: Member, ask: Callable[[Collection[TopicPartition]], Awaitable[Asked]]) -> None:
        """`ask` is `standing.ask` of the client and the group."""
        self._member = member
        self._ask = ask
        self._looks: Counter[TopicPartition] = Counter()
        self._reported: dict[TopicPartition, tuple[int, int]] = {}
        self._has_warned_of_expired = False
        self._ids: dict[str, str] = {}  #: the first id that each topic had here
        self._throttle = LogThrottle()

    async def find(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return where those of `partitions` go on of which that can be said now. Ask for the others again after `ASK_AGAIN` seconds.

        Raises `ConfigurationError` if a log ends before what the database has passed.
        """
        standings = {partition: self._checked(partition, each) for partition, each in (await self._standings(partitions)).items()}
        begins = {partition: self._begin_of(partition, standing) for partition, standing in standings.items()}
        kept = {partition: begin for partition, begin in begins.items() if self._is_kept(partition)}
        progress = await self.take_over(standings, kept) if kept else {}
        self._warn_of_expired(standings)
        found = {}
        for partition, standing in standings.items():
            if partition in kept and partition not in progress:
                continue
            passed, generation = progress.get(partition, (begins[partition], None))
            if (next := self._within_log(partition, passed, standing)) is not None:
                offset, metadata = standing.committed or (None, "")
                topic = standing.topic._replace(partitions=self._count(partition, standing))
                skips = offset is None and next > standing.start
                found[partition] = Position(next, offset, generation, metadata, topic, standing.end, skips)
        return found

    def _checked(self, partition: TopicPartition, standing: Standing) -> Standing:
        """`standing` without what was committed of a topic of this name that is gone.

        Raises `ConfigurationError` where a database has offsets of that too.
        """
        own = self._own(standing)
        if known := standing.topic.id if own is None else own.topic_id:
            self._ids.setdefault(partition.topic, known)
        if standing.committed is None or own is None or not own.is_about_another(standing.topic.id):
            return standing
        if self._is_kept(partition):
            raise ConfigurationError(
                f"topic {partition.topic!r} was deleted and made again since its group committed, and the database has the offsets of the "
                "one before; raise epoch of Transactional, and everything that is in the topics is run"
            )
        log.error(
            "topic was deleted and created again",
            topic=partition.topic,
            partition=partition.partition,
            offset=standing.committed.offset,
            goes_on_at=standing.start,
        )
        self._record_seek(partition, standing.committed.offset, standing.start, reason="made-again")
        return standing._replace(committed=None)

    def _warn_of_expired(self, standings: Mapping[TopicPartition, Standing]) -> None:
        """Say it where a group has copies and no offset of the topic that they come back in: Kafka forgets those of an empty group."""
        retry = self._member.names.retry
        without = [each for each, standing in standings.items() if each.topic == retry and standing.committed is None and standing.end > 0]
        if without and not self._has_warned_of_expired:
            self._has_warned_of_expired = True
            log.warning(
                "group lost its committed offsets",
                group=self._member.settings.group,
                topic=retry,
                partitions=len(without),
            )

    def _own(self, standing: Standing) -> CommitMetadata | None:
        return None if standing.committed is None else self._member.own(standing.committed.metadata)

    def _is_made_again(self, topic: str, now: Topic) -> bool:
        """Return whether this worker, or the last commit that it saw, knew another topic of that name."""
        return now.id is not None and self._ids.get(topic, now.id) != now.id

    def _count(self, partition: TopicPartition, standing: Standing) -> int | None:
        """How many partitions the topic had when the group started with it; 0 for one that was recreated, of which everything is read."""
        if standing.committed is not None:
            own = self._own(standing)
            remembered = None if own is None else own.partitions
        elif self._is_made_again(partition.topic, standing.topic):
            return 0
        else:
            remembered = self._remembered(standing)
        return standing.topic.partitions if remembered is None else remembered

    def _remembered(self, standing: Standing) -> int | None:
        """The least count that the commits of other partitions say; `None` for a topic that the group has not started with."""
        left = (self._member.own(each.metadata) for each in standing.others)
        return min(
            (own.partitions for own in left if own and own.partitions is not None and not own.is_about_another(standing.topic.id)),
            default=None,
        )

    def _is_kept(self, partition: TopicPartition) -> bool:
        """Return whether its offset is in the database."""
        return self._member.offsets is not None and partition.topic != self._member.names.retry

    async def _standings(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Standing]:
        try:
            known, unknown = await self._ask(partitions)
        except KafkaError as raised:
            known, unknown = {}, dict.fromkeys(partitions, raised)
        if not unknown:
            self._throttle.reset("brokers")
        elif self._throttle.is_due("brokers"):
            partition, error = min(unknown.items())
            log.warning(
                "start positions could not be read",
                partitions=len(unknown),
                topic=partition.topic,
                partition=partition.partition,
                error=said(error),
                retry_in=ASK_AGAIN,
            )
        return known

    def _begin_of(self, partition: TopicPartition, standing: Standing) -> int:
        """Retry topics start at their earliest record, or retries that were sent before would be missed; so does what was made since."""
        if standing.committed is not None:
            return standing.committed.offset
        is_whole = self._is_new(partition, standing) or self._member.sources.begins_whole(partition.topic)
        earliest = partition.topic == self._member.names.retry or is_whole or self._member.settings.start == "earliest"
        return standing.start if earliest else standing.end

    def _is_new(self, partition: TopicPartition, standing: Standing) -> bool:
        """Return whether it was made since the group started with its topic: nothing of it was passed over on purpose."""
        if self._is_made_again(partition.topic, standing.topic):
            return True
        remembered = self._remembered(standing)
        return remembered is not None and partition.partition >= remembered

    def _within_log(self, partition: TopicPartition, position: int, standing: Standing) -> int | None:
        """`position`, or the start of the log if that does not have it any more; `None` if it may have it yet.

        A log that ends before what was read lost its end, or was recreated: whatever it has may be new, and is read. RocketMQ's
        consumer goes to the end (`correctLogicOffset`), which would lose what was written meanwhile.
        """
        start, end = standing.start, standing.end
        if start <= position <= end:
            self._looks.pop(partition, None)
            return position
        if position > end and not self._has_looked(partition):
            return None
        log.error(
            "position out of range",
            topic=partition.topic,
            partition=partition.partition,
            offset=position,
            log_start=start,
            log_end=end,
            goes_on_at=start,
        )
        self._record_seek(partition, position, start, reason="out-of-range")
        return start

    def _record_seek(self, partition: TopicPartition, position: int, start: int, *, reason: str) -> None:
        attrs = json.dumps({"reason": reason, "goes_on_at": start})
        self._member.record(Event(EventCode.SEEK, *partition, min(position, start), range_end=max(position, start), attrs=attrs))

    def _has_looked(self, partition: TopicPartition) -> bool:
        """Return whether this was the last look at a log that ends too early."""
        self._looks[partition] += 1
        if self._looks[partition] < _LOOKS_AT_END:
            return False
        del self._looks[partition]
        return True

    async def take_over(
        self, standings: Mapping[TopicPartition, Standing], positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, Progress]:
        """Return where the database says that partitions go on; `positions` are those of the brokers, which are updated later.

        Leaves out those that it can't say it of now. Raises `ConfigurationError` if a log ends before that.
        """
        offsets = self._member.offsets
        assert offsets is not None
        try:
            found = await self._take_over(offsets, positions)
        except StoreUnavailable as error:
            if self._throttle.is_due("database"):
                log.warning(
                    "offsets could not be taken over",
                    partitions=len(positions),
                    error=said(error),
                    retry_in=ASK_AGAIN,
                )
            return {}
        self._throttle.reset("database")
        progress = {
            partition: each
            for partition, each in found.items()
            if self._is_in_log(partition, each, positions[partition], standings[partition].end)
        }
        for partition, each in progress.items():
            self._report_difference(partition, each, positions[partition], is_new=standings[partition].committed is None)
        return progress if await self._is_durable() else {}

    async def _take_over(self, offsets: OffsetsStore, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, Progress]:
        taken = await take_over_all(
            offsets, self._member.owner, {(partition.topic, partition.partition): at for partition, at in positions.items()}
        )
        return {TopicPartition(*place): progress for place, progress in taken.items()}

    def _is_in_log(self, partition: TopicPartition, progress: Progress, position: int, end: int) -> bool:
        """Return whether what the database has passed is in the log; `False` if that may become so. Otherwise it speaks of another log."""
        if progress.next <= max(position, end):
            return True
        if not self._has_looked(partition):
            return False
        raise ConfigurationError(
            f"the database says that {partition.topic}/{partition.partition} goes on at {progress.next}, and its log ends at {end}: "
            "the topic was recreated, or lost its end; raise epoch of Transactional, and everything that is in the topics is run"
        )

    def _report_difference(self, partition: TopicPartition, progress: Progress, position: int, *, is_new: bool) -> None:
        """Say it where the database and the broker differ, once."""
        if self._reported.get(partition) == (position, progress.next):
            return
        self._reported[partition] = (position, progress.next)
        if progress.next < position:
            log.warning(
                "database is behind the broker",
                topic=partition.topic,
                partition=partition.partition,
                committed=position,
                offset=progress.next,
            )
        elif progress.next > position:
            if is_new:
                log.warning(
                    "broker lacks an offset the database has",
                    topic=partition.topic,
                    partition=partition.partition,
                    offset=progress.next,
                )
            self._member.record(Event(EventCode.TX_SETTLED, *partition, position, range_end=progress.next))

    async def _is_durable(self) -> bool:
        """Whether the events are durable: the offsets that they cover are committed next, and the events would not be written again."""
        if self._member.sink is None:
            return True
        try:
            await self._member.sink.flush()
        except EventLogUnavailable as error:
            if self._throttle.is_due("events"):
                log.warning("passed offsets could not be exported", error=said(error), retry_in=ASK_AGAIN)
            return False
        self._throttle.reset("events")
        return True
