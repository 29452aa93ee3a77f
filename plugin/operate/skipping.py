"""Skipping unreadable records on purpose: a named range within one record batch, while the group has no members.

What is passed is recorded as SKIPPED and durable first, then passed in the database where offsets are kept there, then in the broker.
A kill in between leaves the rest to the next call.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import RecordTooLargeError

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.events import Event, EventCode, EventSink
from ackwise.middleware.policies.policies import Transactional
from ackwise.middleware.storage.transaction import OffsetsStore, OffsetsTransaction
from ackwise.plugin.consumer.member import owner_of
from ackwise.plugin.kafka.clients import opened
from ackwise.plugin.kafka.recordbatches import RawBatches, at_byte
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.groupstate import read_membership
from ackwise.plugin.topics.topicadmin import connected, with_matching

_PASSAGE: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d{1,9})/(?P<first>\d{1,18})(-(?P<last>\d{1,18}))?")


class Passage(NamedTuple):
    """The offsets from `first` to `last`, both included, of one partition."""

    topic: str
    partition: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.first}-{self.last}"


class Skipped(NamedTuple):
    """What was found where a group stands, and whether the passage was passed."""

    passage: Passage
    batch: tuple[int, int]  #: first and last offset of the record batch that can't be read
    error: str
    has_events: bool  #: whether the events say that it was on purpose
    is_done: bool


def parse_passage(text: str) -> Passage:
    """The passage that `text`, such as `orders/3/120-128` or `orders/3/120`, names. Raises `ConfigurationError`."""
    if (found := _PASSAGE.fullmatch(text)) is None:
        raise ConfigurationError(f"{text!r} names no records; write TOPIC/PARTITION/FIRST-LAST, such as orders/3/120-128")
    passage = Passage(found["topic"], int(found["partition"]), int(found["first"]), int(found["last"] or found["first"]))
    if passage.last < passage.first:
        raise ConfigurationError(f"{text!r} ends before it starts; write the smaller offset first")
    return passage


async def skip(group: Group, passage: Passage, *, execute: bool) -> Skipped:
    """Pass `passage` for `group` if `execute`, after making sure that it is unreadable and that it is all that is passed.

    Raises `ConfigurationError` if it is more than what can't be read, or if the group has members, and another `AckwiseError` if
    the brokers or the database do not answer.
    """
    if (policy := group.slots.broadcasting) is not None and policy.offsets_file is not None:
        raise ConfigurationError(
            f"{group.settings.group!r} keeps its positions in {policy.offsets_file}, which no command changes; take the file away to start "
            "at the end of the topics, as a new instance does"
        )
    if passage.topic == group.names.delay:
        raise ConfigurationError(
            f"{passage.topic!r} is the delay topic, read by the relay in group {group.names.relay_group!r}; stop all workers, and move "
            f"that group to {passage.last + 1} on partition {passage.partition} with kafka-consumer-groups.sh --reset-offsets. "
            "What is passed there is found by `ackwise reconcile` as lost retries, if the app has Events"
        )
    group = await with_matching(group)
    read = [*group.sources, *([group.names.retry] if group.names.all else [])]
    if passage.topic not in read:
        raise ConfigurationError(f"group {group.settings.group!r} reads no topic {passage.topic!r}; it reads {', '.join(read)}")
    partition = TopicPartition(passage.topic, passage.partition)
    async with connected(group.settings) as admin:
        await _require_no_members(admin, group)
        committed = await _committed(admin, group, partition)
        stuck = await _where_it_stands(TopicReader(admin), partition, committed)
        _require_within(passage, committed, stuck)
        sink = group.slots.open_sink(group.settings.group, group.sources)
        if execute:
            await _pass(admin, group, passage, committed, sink)
    return Skipped(passage, (stuck.base, stuck.end - 1), stuck.error, sink is not None, execute)


async def _require_no_members(admin: AIOKafkaAdminClient, group: Group) -> None:
    (answer,) = await admin.describe_consumer_groups([group.settings.group])
    described: Any = answer.to_object()["groups"][0]
    membership = read_membership(described)
    if membership.members or membership.state not in ("Empty", "Dead"):
        raise ConfigurationError(
            f"group {group.settings.group!r} still has members ({len(membership.members)}); stop all of its workers first, and wait "
            "until a crashed one is missed (session_timeout)"
        )


async def _committed(admin: AIOKafkaAdminClient, group: Group, partition: TopicPartition) -> int:
    found = (await admin.list_consumer_group_offsets(group.settings.group, partitions=[partition])).get(partition)
    if found is None or found.offset < 0:
        raise ConfigurationError(
            f"group {group.settings.group!r} has committed nothing on {partition.topic}/{partition.partition}; check whether it "
            "exists, then start a worker, which commits where it starts, stop it, and try again"
        )
    return found.offset


class _Stuck(NamedTuple):
    """Where reading stops: the batch there, and the error of a parser."""

    at: int
    base: int
    end: int
    error: str


async def _where_it_stands(reader: TopicReader, partition: TopicPartition, committed: int) -> _Stuck:
    """The first batch from `committed` on that can't be read. Raises `ConfigurationError` if something that can comes before it."""
    place = f"{partition.topic}/{partition.partition}"
    start, end = (await reader.bounds([partition]))[partition]
    position = committed
    while position < end:
        if position < start:
            raise ConfigurationError(
                f"{place} starts at {start}, behind what was committed ({committed}); start a worker, it goes on there"
            )
        raw = await reader.fetch(partition, position)
        reading = raw.records()
        if raw.is_cut():  # what the client says of that, too
            return await _stuck(reader, raw, 0, position, end, RecordTooLargeError())
        try:
            record = next(reading, None)
        except Exception as error:  # noqa: BLE001  # whatever a parser raises
            return await _stuck(reader, raw, at_byte(reading), reading.next_fetch_offset, end, error)
        if record is not None:
            raise ConfigurationError(
                f"{place}/{record.offset} can be read and is not done; start a worker, which does what comes before the record that "
                "is unreadable, stop it, and try again"
            )
        if reading.next_fetch_offset == position:
            break
        position = reading.next_fetch_offset
    raise ConfigurationError(f"{place} has nothing from {committed} on that can't be read; nothing has to be passed")


async def _stuck(reader: TopicReader, raw: RawBatches, begins: int, at: int, log_end: int, error: Exception) -> _Stuck:
    """Reading stands at offset `at`, in the batch that starts at byte `starts` of `raw`.

    What that batch says of itself may be wrong as well: it ends no later than the next one starts that is whole, or than the log.
    """
    base, claimed = raw.claim(begins) or (at, at)
    whole = raw.next_whole(begins, at)
    if whole is None:
        whole = await _next_whole(reader, raw.partition, at, log_end)
    ends = [max(log_end, at), *(each for each in (claimed, whole) if each > at)]
    return _Stuck(at, base if 0 <= base <= at else at, min(ends), type(error).__name__)


async def _next_whole(reader: TopicReader, partition: TopicPartition, at: int, log_end: int) -> int:
    """Where the first whole batch beyond `at` starts of which the broker is asked by its offset; the end of the log without one."""
    found, low, high = log_end, at + 1, log_end
    while low < high:
        middle = (low + high) // 2
        whole = (await reader.fetch(partition, middle)).next_whole(-1, at)
        if whole is None:
            low = middle + 1
        else:
            found, high = min(found, whole), middle
    return found


def _require_within(passage: Passage, committed: int, stuck: _Stuck) -> None:
    if committed <= passage.first <= stuck.at <= passage.last < stuck.end:
        return
    raise ConfigurationError(
        f"{passage} is not what can't be read: reading stands at {stuck.at}, in a record batch of {stuck.base} to {stuck.end - 1}, and "
        f"the group has committed {committed}; name {passage.topic}/{passage.partition}/{stuck.at}-{stuck.end - 1}, or less of its end"
    )


async def _pass(admin: AIOKafkaAdminClient, group: Group, passage: Passage, committed: int, sink: EventSink | None) -> None:
    partition = TopicPartition(passage.topic, passage.partition)
    if sink is None:
        await _pass_in_database(group, partition, committed, passage)
        await _pass_in_broker(admin, group, partition, passage)
        return
    await sink.open()
    try:
        for offset in range(passage.first, passage.last + 1):
            sink.record(Event(EventCode.SKIPPED, *partition, offset))
        await sink.flush()
        await _pass_in_database(group, partition, committed, passage)
        await _pass_in_broker(admin, group, partition, passage)
        sink.record(Event(EventCode.COMMITTED, *partition, range_end=passage.last + 1))
        await sink.flush()
    finally:
        await sink.close()


async def _pass_in_database(group: Group, partition: TopicPartition, committed: int, passage: Passage) -> None:
    """Where the database says how far the group is, it has the last word. Raises `ConfigurationError` if it is elsewhere."""
    policy = group.dedup
    if not isinstance(policy, Transactional) or policy.mode != "offsets" or partition.topic == group.names.retry:
        return
    store = cast(OffsetsStore, group.slots.open_inbox())
    owner = owner_of(policy, group.settings.group)
    await store.open()
    try:
        progress = await store.take_over(owner, *partition, position=committed)
        if not committed <= progress.next <= passage.last + 1:
            raise ConfigurationError(
                f"the database says that {partition.topic}/{partition.partition} goes on at {progress.next}, and the broker at "
                f"{committed}; start a worker, which settles that, stop it, and try again"
            )
        async with store.begin(retention=float(policy.retention)) as transaction:
            moving = cast(OffsetsTransaction, transaction)
            await moving.lock(owner, *partition, progress.generation)
            await moving.advance(owner, *partition, progress.generation, passage.last + 1)
    finally:
        await store.close()


async def _pass_in_broker(admin: AIOKafkaAdminClient, group: Group, partition: TopicPartition, passage: Passage) -> None:
    await _require_no_members(admin, group)  # a commit beside members is refused by the broker as well
    settings, options = group.settings, dict[str, Any](group.settings.client_options)
    consumer = AIOKafkaConsumer(bootstrap_servers=settings.brokers, group_id=settings.group, enable_auto_commit=False, **options)
    async with opened(consumer):
        consumer.assign([partition])
        await consumer.commit({partition: passage.last + 1})
