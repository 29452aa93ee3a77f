"""The delay relay: moves copies from the delay topics to the retry topic when they are due.

Each level has a topic of its own, so the order in it is the order of being due and its head alone is looked at. The
relay is a service of every worker, in a consumer group of its own, and writes no events about messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from ackwise.middleware.disposition import Failure, Reason
from ackwise.middleware.errors import PublishRefused, PublishUnavailable
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.message import Delivery, Origin
from ackwise.middleware.publisher import Publisher
from ackwise.middleware.retry import DelayLevels
from ackwise.middleware.watermark import Watermark
from ackwise.middleware.wire import Copy, ForeignCopy, NewerWire, dead_letter, due_ms, shrink
from ackwise.plugin.settings import REBALANCE_TIMEOUT, HostSettings
from ackwise.plugin.topics import TopicNames

__all__ = ["DelayRelay", "Move", "Wait", "next_hop"]

log = logging.getLogger("ackwise")

#: A partition with this many records in hand is not fetched from.
_BUFFER: Final = 500

#: Seconds: between looks at the broker when nothing is due, until a publish is repeated, between alarms and between events.
_POLL, _PUBLISH_AGAIN, _ALARM, _BROKER_OFFSETS_EVERY = 0.5, 5.0, 60.0, 30.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Not before `until`, epoch milliseconds."""

    until: int


@dataclass(frozen=True, slots=True)
class Move:
    """To the delay topic of `level`, or to the retry topic if it is 0."""

    level: int


def next_hop(now_ms: int, due: int, written_ms: int, level: int, levels: DelayLevels) -> Wait | Move:
    """What becomes of a record of the topic of `level`, written at `written_ms` and due at `due` (epoch ms).

    It waits there for the level's delay, or until it is due if that is sooner; what is left then is waited for on the
    largest level that fits, and less than the smallest level where it is.
    """
    hop_ends = min(due, written_ms + round(levels.delay(level) * 1000))
    if now_ms < hop_ends:
        return Wait(hop_ends)
    if now_ms >= due:
        return Move(0)
    fitting = levels.fitting((due - now_ms) / 1000)
    return Wait(due) if fitting is None else Move(fitting)


@dataclass(slots=True)
class _Head:
    """One partition of a delay topic: what is in hand, and what may be committed."""

    level: int
    watermark: Watermark
    records: deque[Any] = field(default_factory=deque)
    not_before: float = 0.0  #: epoch seconds
    committed: int | None = None


class DelayRelay:
    """Moves what is due, for as long as `run` goes. `clock` is wall time in seconds: due times cross machines."""

    def __init__(
        self,
        settings: HostSettings,
        names: TopicNames,
        levels: DelayLevels,
        publisher: Publisher,
        *,
        sink: EventSink | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._names = names
        self._levels = levels
        self._publisher = publisher
        self._sink = sink
        self._clock = clock
        self._heads: dict[TopicPartition, _Head] = {}
        self._next_commit = self._next_events = 0.0
        self._consumer: AIOKafkaConsumer | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set, then commit and leave the group. Raises only what is a defect of ours."""
        consumer = self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self._settings.brokers,
            group_id=f"{self._settings.group}.relay",
            client_id=self._settings.client_id,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # a copy that was sent before must not be missed
            session_timeout_ms=round(self._settings.session_timeout * 1000),
            heartbeat_interval_ms=round(self._settings.session_timeout * 1000 / 5),
            rebalance_timeout_ms=round(REBALANCE_TIMEOUT * 1000),
            **self._settings.client_options,
        )
        consumer.subscribe(self._names.delays, listener=_Listener(self))
        try:
            await consumer.start()
            while not stop.is_set():
                try:
                    await self._turn(consumer)
                except KafkaError as error:
                    log.warning("the delay relay can't reach the broker (%s: %s); trying again in 1 s", type(error).__name__, error)
                    await asyncio.sleep(1.0)
            await self._commit()
        finally:
            await consumer.stop()

    async def _turn(self, consumer: AIOKafkaConsumer) -> None:
        """Fetch, move what is due, commit: one round, as long as the next thing that is due, at most half a second."""
        self._regulate(consumer)
        fetched = await consumer.getmany(timeout_ms=round(self._pause() * 1000), max_records=_BUFFER)
        for partition, records in fetched.items():
            head = self._head(partition)
            head.records.extend(record for record in records if head.watermark.hold(record.offset))
        await self._move(list(self._heads.values()))
        now = self._clock()
        if now >= self._next_commit:
            self._next_commit = now + (self._settings.commit_interval or _POLL)
            await self._commit()
        if self._sink is not None and now >= self._next_events:
            self._next_events = now + _BROKER_OFFSETS_EVERY
            await self._record_broker_offsets(consumer, self._sink)

    def _pause(self) -> float:
        due = [head.not_before for head in self._heads.values() if head.records]
        return max(0.001, min(_POLL, min(due) - self._clock())) if due else _POLL

    def _regulate(self, consumer: AIOKafkaConsumer) -> None:
        assigned, paused = consumer.assignment(), consumer.paused()
        for partition, head in self._heads.items():
            full = len(head.records) >= (_BUFFER // 2 if partition in paused else _BUFFER)
            if partition in assigned and full != (partition in paused):
                if full:
                    consumer.pause(partition)
                else:
                    consumer.resume(partition)

    async def _move(self, heads: Sequence[_Head]) -> None:
        """Publish everything that is due, and finish what was acknowledged up to the first that was not: none is skipped."""
        now = self._clock()
        batch = [(head, record, copy) for head in heads if head.not_before <= now for record, copy in self._due(head)]
        if not batch:
            return
        answers = await self._publisher.publish([copy for _, _, copy in batch])
        stuck: set[int] = set()
        for (head, record, copy), answer in zip(batch, answers, strict=True):
            if isinstance(answer, PublishRefused) and id(head) not in stuck:
                answer = await self._bury(record, copy, answer)
            if answer is not None:
                if id(head) not in stuck:
                    log.warning(
                        "%s/%d/%d can't be moved (%s); trying again in %.0f s",
                        record.topic,
                        record.partition,
                        record.offset,
                        answer,
                        _PUBLISH_AGAIN,
                    )
                head.not_before = self._clock() + _PUBLISH_AGAIN
                stuck.add(id(head))
            elif id(head) not in stuck:
                head.records.popleft()
                head.watermark.finish(record.offset)

    def _due(self, head: _Head) -> list[tuple[Any, Copy]]:
        """The records at the head that are to be moved now, and where; says when to look again."""
        now_ms = int(self._clock() * 1000)
        due: list[tuple[Any, Copy]] = []
        for record in head.records:
            headers = tuple(record.headers)
            try:
                hop = next_hop(now_ms, due_ms(headers), record.timestamp, head.level, self._levels)
            except ForeignCopy as error:
                due.append((record, self._foreign(record, error)))
                continue
            except NewerWire as error:
                head.not_before = self._clock() + _ALARM
                log.error("%s/%d/%d is held: %s", record.topic, record.partition, record.offset, error)
                break
            if isinstance(hop, Wait):
                head.not_before = hop.until / 1000
                break
            topic = self._names.delays[hop.level - 1] if hop.level else self._names.retry
            due.append((record, Copy(topic, record.partition, record.key, record.value, headers)))
        return due

    def _foreign(self, record: Any, error: Exception) -> Copy:
        """Somebody else's record: it is neither lost nor in the way as a dead letter."""
        log.error("%s/%d/%d is not ours and goes to the dead letters: %s", record.topic, record.partition, record.offset, error)
        return self._dead_letter(record, Reason.FOREIGN_COPY, Failure.of(error))

    def _dead_letter(self, record: Any, reason: str, failure: Failure) -> Copy:
        origin = Origin(record.topic, record.partition, record.offset, record.timestamp)
        delivery = Delivery(*origin[:3], record.timestamp, record.key, record.value, tuple(record.headers), origin)
        return dead_letter(
            delivery, topic=self._names.dead_letter, partition=record.partition, group=self._settings.group, handler="-",
            now_ms=int(self._clock() * 1000), reason=reason, failure=failure,
        )  # fmt: skip

    async def _bury(self, record: Any, copy: Copy, refusal: PublishRefused) -> PublishUnavailable | PublishRefused | None:
        """A copy that is refused for good becomes a dead letter, cut until it fits."""
        letter = copy if copy.topic == self._names.dead_letter else self._dead_letter(record, Reason.TOO_LARGE, Failure.of(refusal))
        answer: PublishUnavailable | PublishRefused | None = refusal if letter is copy else (await self._publisher.publish([letter]))[0]
        while isinstance(answer, PublishRefused) and (smaller := shrink(letter)) is not None:
            letter = smaller
            answer = (await self._publisher.publish([letter]))[0]
        return answer

    async def _commit(self) -> None:
        """Commit what was acknowledged. A commit that fails is made good by the next one; copies that come twice are stale."""
        offsets = {
            partition: offset
            for partition, head in self._heads.items()
            if (offset := head.watermark.commit) is not None and offset != head.committed
        }
        if not offsets or self._consumer is None:
            return
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError) as error:
            log.info("the relay's commit was refused, since the partitions moved: %s", type(error).__name__)
        except KafkaError as error:
            log.warning("the relay's commit failed (%s: %s); trying again", type(error).__name__, error)
        else:
            for partition, offset in offsets.items():
                if (head := self._heads.get(partition)) is not None:
                    head.committed = offset

    async def _record_broker_offsets(self, consumer: AIOKafkaConsumer, sink: EventSink) -> None:
        heads = dict(self._heads)
        if not heads:
            return
        starts, ends = await consumer.beginning_offsets(list(heads)), await consumer.end_offsets(list(heads))
        for partition, head in heads.items():
            attrs = json.dumps({"committed": head.committed})
            sink.record(
                Event(
                    EventCode.BROKER_OFFSETS,
                    partition.topic,
                    partition.partition,
                    starts[partition],
                    range_end=ends[partition],
                    role="delay",
                    attrs=attrs,
                )
            )

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._head(partition)

    def _head(self, partition: TopicPartition) -> _Head:
        """Made by whichever comes first, the assignment or its first records: what was fetched is never dropped."""
        if partition not in self._heads:
            self._heads[partition] = _Head(self._names.delays.index(partition.topic) + 1, Watermark())
        return self._heads[partition]

    async def _revoke(self, partitions: Iterable[TopicPartition]) -> None:
        await self._commit()
        for partition in partitions:
            self._heads.pop(partition, None)


class _Listener(ConsumerRebalanceListener):
    """Heads exist from before the first fetch of an assignment until after its last commit."""

    def __init__(self, relay: DelayRelay) -> None:
        self._relay = relay

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._relay._revoke(revoked)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._relay._assign(assigned)
