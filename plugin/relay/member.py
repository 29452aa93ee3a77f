"""Member of the relay's group: one stay from joining to leaving, with a line for each assigned partition."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, KafkaTimeoutError
from aiokafka.structs import OffsetAndMetadata

from ackwise.middleware.commitmetadata import CommitMetadata, group_hash, read_own
from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.log import Log, said
from ackwise.plugin.client.bounded import answer
from ackwise.plugin.client.closing import close_consumer
from ackwise.plugin.client.internals import has_left_the_group, has_no_partitions, keep_awake, look_for_topics, missing_topics
from ackwise.plugin.client.logthrottle import LogThrottle
from ackwise.plugin.client.offsets import Asked, Standing, ask
from ackwise.plugin.client.opening import start
from ackwise.plugin.client.refusal import is_refusal
from ackwise.plugin.client.topicids import Topic, topics_of
from ackwise.plugin.group.relaycounts import DelayStanding
from ackwise.plugin.group.topics import TopicNames
from ackwise.plugin.relay.fetching import DelayFetch
from ackwise.plugin.relay.line import DelayLine

__all__ = ["DelayMember", "OtherLevels", "first_offset"]

log = Log()

#: Seconds: between two looks at the lines, between two questions where to begin, between two looks at the logs' ends, between two alarms.
_POLL, _ASK_AGAIN, _BROKER_OFFSETS_EVERY, _ALARM = 0.5, 0.5, 30.0, 60.0

#: Seconds between two questions for topics that are missing, and between two for delay topics of other levels.
_LOOK_FOR_TOPICS: Final = 5.0
_LOOK_FOR_LEVELS: Final = 300.0

#: Seconds between two looks at the ids of the delay topics.
_IDS_EVERY: Final = 10.0

#: Seconds for a commit, for a look at the logs' ends, for what is being published when a partition is given up (a publisher answers
#: within ten), and for leaving the group.
_COMMIT_TIMEOUT, _LOOK_TIMEOUT, _RELEASE_TIMEOUT, _LEAVE_TIMEOUT = 3.0, 2.0, 12.0, 3.0

#: Seconds for a start, and for one that has begun to go on after a stop.
_START_TIMEOUT, _START_GRACE = 60.0, 1.0

#: Answers that say that a log ends before the commit, until they are believed: a new leader may not know its end at once.
_LOOKS_AT_END: Final = 10


def first_offset(committed: int | None, start: int, end: int) -> int:
    """Where to begin in a log that reaches from `start` to before `end`.

    Without a commit at its start: a copy that was sent before must not be missed. A commit outside of the log belongs
    to records that are gone, so everything that is there is new; RocketMQ's consumer goes to the end above it
    (`correctLogicOffset`), which would lose what was written meanwhile. What comes twice is told by its attempt.
    """
    return committed if committed is not None and start <= committed <= end else start


class OtherLevels(AckwiseError):
    """The group has delay or send topics that nobody reads, or no longer has some; `names` has those that there are."""

    def __init__(self, names: TopicNames) -> None:
        super().__init__("delay topics of other levels are there")
        self.names = names


class DelayMember(ConsumerRebalanceListener):
    """A member of the relay's group. `make_line` makes the line of a partition that begins at an offset."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        names: TopicNames,
        make_line: Callable[[TopicPartition, int], DelayLine],
        *,
        sink: EventSink | None,
        commit_interval: float,
        suspect: Callable[[], None] = lambda: None,
        wanted: Callable[[Collection[str]], TopicNames] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`suspect` is called where a topic of the group may be gone. `wanted` are the names to read where these topics are there."""
        self._consumer = consumer
        self._suspect = suspect
        self._wanted = wanted or (lambda _: names)
        self._names = names
        self._make_line = make_line
        self._sink = sink
        self._commit_interval = commit_interval
        self._clock = clock
        self._lines: dict[TopicPartition, DelayLine]
        self._begin_assignment()
        self._unopened: set[TopicPartition] = set()  #: another set with each assignment
        self._asking: tuple[set[TopicPartition], asyncio.Task[Asked]] | None = None
        self._ended: set[asyncio.Task[None]] = set()
        self._beyond_end: Counter[TopicPartition] = Counter()
        self._topics: dict[TopicPartition, Topic] = {}  #: whose logs the lines read
        self._looking: asyncio.Task[None] | None = None
        self._next_ids = 0.0
        self._next_ask = self._next_commit = self._next_look = self._next_alarm = self._next_topics = self._next_levels = 0.0
        self._throttle = LogThrottle(clock=clock)

    async def relay(self) -> None:
        """Join, and feed the lines. Ends with an error only, whatever it is; with `OtherLevels` if there are other topics to read."""
        self._consumer.subscribe([*self._names.delays, *self._names.sends], listener=self)
        await self._start()
        while True:
            await self._look_for_levels()
            await self._open_lines()
            await self._fetch.feed(_POLL, only_lines=bool(self._unopened))
            self._require_lines()
            self._look_for_topics()
            if self._clock() >= self._next_commit:
                self._next_commit = self._clock() + self._commit_interval
                await self._commit(self._lines)
            self._look_for_ids()
            if self._sink is not None and self._clock() >= self._next_look:
                self._next_look = self._clock() + _BROKER_OFFSETS_EVERY
                await self._record_broker_offsets(self._sink)

    async def _look_for_levels(self) -> None:
        """What the group ever wrote to a topic of its own is read, whatever levels it has now."""
        if self._clock() < self._next_levels:
            return
        self._next_levels = self._clock() + _LOOK_FOR_LEVELS
        try:
            there = await answer(self._consumer.topics(), within=_LOOK_TIMEOUT)
        except Exception as error:  # noqa: BLE001  # whatever the client raises, it is looked again
            log.debug("which delay topics there are can't be learnt now", error=said(error))
            return
        known = {*self._consumer.subscription()}.difference(missing_topics(self._consumer))  # a broker that has just started lists fewer
        if (names := self._wanted({*there, *known})) != self._names:
            raise OtherLevels(names)

    def _look_for_topics(self) -> None:
        """Ask for those that are missing, which the client would do every five minutes."""
        if self._clock() >= self._next_topics and missing_topics(self._consumer):
            self._next_topics = self._clock() + _LOOK_FOR_TOPICS
            self._next_levels = 0.0  # it may be one of a level of before, which nobody makes again
            self._suspect()
            look_for_topics(self._consumer)

    async def _start(self) -> None:
        """A start that is cut short leaves a connection open in aiokafka, so it is let finish if it is quick.

        It ends when the group is joined, and never if the client was cancelled from inside while it joined.
        """
        starting = asyncio.create_task(start(self._consumer), name="ackwise relay start")
        give_up_at = self._clock() + _START_TIMEOUT
        try:
            while not starting.done() and not has_left_the_group(self._consumer) and self._clock() < give_up_at:
                await asyncio.wait({starting}, timeout=_POLL)
        finally:
            if not starting.done():
                await asyncio.wait({starting}, timeout=_START_GRACE)
            starting.cancel()
            await asyncio.wait({starting}, timeout=_START_GRACE)
        if has_left_the_group(self._consumer) and (not starting.done() or starting.cancelled()):
            raise KafkaConnectionError("the relay's client was cancelled from inside while it joined")
        if not starting.done():
            raise KafkaTimeoutError(f"the relay's client did not start within {_START_TIMEOUT:g} s")
        starting.result()
        keep_awake(self._consumer)

    async def close(self) -> None:
        """Let what is being published finish, commit what was acknowledged, and leave the group; in bounded time, whatever hangs."""
        try:
            lines = dict(self._lines)
            await self.on_partitions_revoked(lines)
            if self._sink is not None and lines:
                self._lines = lines
                await self._record_broker_offsets(self._sink)
        finally:
            if self._asking is not None:
                self._asking[1].cancel()
            if self._looking is not None:
                self._looking.cancel()
            await close_consumer(self._consumer, within=_LEAVE_TIMEOUT)

    def standing(self) -> list[DelayStanding]:
        """How each of its partitions stands, as far as the client knows."""
        assigned = self._consumer.assignment()
        ends = {partition: self._consumer.highwater(partition) or 0 for partition in self._lines.copy() if partition in assigned}
        return [
            DelayStanding(partition.topic, line.watermark.count + max(0, ends.get(partition, 0) - line.position), line.late)
            for partition, line in self._lines.copy().items()
        ]

    def _begin_assignment(self) -> None:
        """No partition of before is one of after: what was known of them is forgotten."""
        self._lines = {}
        self._fetch = DelayFetch(self._consumer, self._names.relay_group, self._lines, reopen=self._reopen)

    async def on_partitions_assigned(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, assigned: Iterable[TopicPartition]
    ) -> None:
        """Note them. The loop opens their lines: it alone fetches, and no heartbeat is sent before this ends."""
        self._unopened = set(assigned)

    async def on_partitions_revoked(  # pyright: ignore[reportIncompatibleMethodOverride]  # aiokafka awaits it
        self, revoked: Iterable[TopicPartition]
    ) -> None:
        """Commit what was acknowledged, and drop the rest, which the next owner fetches again."""
        self._unopened = set()
        lines = {partition: self._lines[partition] for partition in revoked if partition in self._lines}
        self._begin_assignment()
        for line in lines.values():
            line.stop()
        tasks = {line.task for line in lines.values() if line.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_RELEASE_TIMEOUT)
            for task in late:
                task.cancel()
        await self._commit(lines)

    async def _open_lines(self) -> None:
        """Ask where the partitions begin that have no line, and open those of which it is known; the others go on meanwhile.

        Nobody begins anywhere while the answer is "can't say".
        """
        if self._asking is None:
            if not self._unopened or self._clock() < self._next_ask:
                return
            asking = asyncio.create_task(ask(self._consumer, self._names.relay_group, self._unopened), name="ackwise relay begins")
            self._asking = self._unopened, asking
        asked_for, asking = self._asking
        if not self._lines:
            await asyncio.wait({asking}, timeout=_POLL)
        if not asking.done():
            return
        self._asking = None
        if asked_for is not self._unopened:
            return  # assigned anew meanwhile, when somebody else may have committed
        asked = asking.result()
        for partition, standing in asked.known.items():
            if self._is_believed(partition, standing):
                self._open_line(partition, standing)
        if self._unopened:
            self._next_ask = self._clock() + _ASK_AGAIN
            self._log_unopened(asked.unknown)

    def _is_believed(self, partition: TopicPartition, standing: Standing) -> bool:
        committed = standing.committed
        if committed is None or committed.offset <= standing.end:
            return True
        self._beyond_end[partition] += 1
        return self._beyond_end[partition] >= _LOOKS_AT_END

    def _open_line(self, partition: TopicPartition, standing: Standing) -> None:
        """A line begins with a seek to its position, in one step without an await, so that it misses nothing that is fetched."""
        committed = self._committed(standing)
        self._topics[partition] = standing.topic
        position = first_offset(committed, standing.start, standing.end)
        if committed is not None and position != committed:
            log.warning(
                "the relay's commit is outside of what the delay topic holds, it begins elsewhere",
                topic=partition.topic,
                partition=partition.partition,
                offset=committed,
                log_start=standing.start,
                log_end=standing.end,
                goes_on_at=position,
            )
        self._consumer.seek(partition, position)
        self._consumer.resume(partition)  # a fetch that was under way may have paused it for the line that was there before
        line = self._lines[partition] = self._make_line(partition, position)
        line.committed = committed
        line.start().add_done_callback(self._ended.add)
        self._unopened.discard(partition)
        self._beyond_end.pop(partition, None)

    def _committed(self, standing: Standing) -> int | None:
        """What this relay's group committed of this very topic: of one that was deleted and made again nothing was moved yet."""
        if standing.committed is None:
            return None
        left = read_own(standing.committed.metadata, self._names.relay_group)
        return None if left is not None and left.is_about_another(standing.topic.id) else standing.committed.offset

    def _look_for_ids(self) -> None:
        """See now and then whether the topics are the same; no fetch tells it of one that was away and has grown."""
        if (self._looking is None or self._looking.done()) and self._lines and self._clock() >= self._next_ids:
            self._next_ids = self._clock() + _IDS_EVERY
            self._looking = asyncio.create_task(self._reopen_made_again(dict(self._lines)), name="ackwise relay topics")

    async def _reopen_made_again(self, lines: Mapping[TopicPartition, DelayLine]) -> None:
        now, _ = await topics_of(self._consumer, lines)
        for partition, topic in now.items():
            ids = self._topics[partition].id, topic.id
            if None not in ids and ids[0] != ids[1] and self._lines.get(partition) is lines[partition]:
                log.warning(
                    "delay topic was made again, the relay reads it from its start", topic=partition.topic, partition=partition.partition
                )
                self._reopen(partition)

    def _reopen(self, partition: TopicPartition) -> None:
        """Its log does not have the position of its line: where it begins is asked anew, and what is in hand is moved twice at most."""
        self._lines.pop(partition).stop()
        self._unopened.add(partition)

    def _log_unopened(self, unknown: dict[TopicPartition, KafkaError]) -> None:
        waiting = sorted(self._unopened & unknown.keys())
        if not waiting or self._clock() < self._next_alarm:
            return
        self._next_alarm = self._clock() + _ALARM
        log.warning(
            "the relay can't learn where partitions begin, they wait and it asks again",
            topic=waiting[0].topic,
            partition=waiting[0].partition,
            partitions=len(waiting),
            error=said(unknown[waiting[0]]),
            retry_in=_ASK_AGAIN,
        )

    def _require_lines(self) -> None:
        """A line that ended by itself moves nothing any more: everything begins anew."""
        if not self._ended:
            return
        ended = {line.task for line in self._lines.values()} & self._ended
        self._ended.clear()
        for task in ended:
            if task is not None:
                task.result()
                raise AckwiseError("a line of the relay ended")

    async def _commit(self, lines: dict[TopicPartition, DelayLine]) -> None:
        """Commit what was acknowledged. A commit that fails is made good by the next one, or copies come twice and are stale.

        None of a topic that is gone: the client would repeat it until the topic is made again, where it is about other records.
        """
        offsets = {
            partition: offset
            for partition, line in lines.items()
            if (offset := line.watermark.commit) is not None and offset != line.committed
            if not has_no_partitions(self._consumer, partition.topic)
        }
        if not offsets:
            return
        try:
            told = {partition: OffsetAndMetadata(offset, self._metadata(partition)) for partition, offset in offsets.items()}
            await answer(self._consumer.commit(told), within=_COMMIT_TIMEOUT)
        except Exception as error:  # noqa: BLE001  # whatever the client raises, the next commit makes it good
            log.debug("the relay's commit failed, copies may come twice, which is told by their attempt", error=said(error))
            self._log_refused(error, len(offsets))
            return
        self._throttle.reset()
        for partition, offset in offsets.items():
            lines[partition].committed = offset

    def _metadata(self, partition: TopicPartition) -> str:
        return CommitMetadata(group=group_hash(self._names.relay_group), topic_id=self._topics[partition].id).fit()

    def _log_refused(self, error: Exception, partitions: int) -> None:
        """A refusal lasts until somebody lifts it, and the next relay would move everything since the last commit again."""
        if is_refusal(error) and self._throttle.is_due():
            log.error(
                "Kafka refuses the commits of the delay relay, it goes on and tries each again; a relay after it moves copies again",
                group=self._names.relay_group,
                partitions=partitions,
                error=said(error),
            )

    async def _record_broker_offsets(self, sink: EventSink) -> None:
        """Say how far each log reaches and how much of it is moved: reconciliation tells a backlog from a loss by it."""
        lines = dict(self._lines)
        partitions: Collection[TopicPartition] = list(lines)
        if not partitions:
            return
        try:
            starts = await answer(self._consumer.beginning_offsets(partitions), within=_LOOK_TIMEOUT)
            ends = await answer(self._consumer.end_offsets(partitions), within=_LOOK_TIMEOUT)
        except Exception as error:  # noqa: BLE001  # it is looked again, and nothing else depends on it
            log.debug("the ends of the logs can't be read now", error=said(error))
            return
        for partition, line in lines.items():
            if partition not in starts or partition not in ends:
                continue
            sink.record(
                Event(
                    EventCode.BROKER_OFFSETS,
                    partition.topic,
                    partition.partition,
                    starts[partition],
                    range_end=ends[partition],
                    role="delay",
                    attrs=json.dumps({"committed": line.committed}),
                )
            )
