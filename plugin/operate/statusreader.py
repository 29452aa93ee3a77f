"""Reads the status of a group from the brokers: commits, members, and its topics, including the reports of workers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from ackwise.middleware.duration import format_duration
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import ControlRecord, UnreadableControl, WorkerRecord, decode_worker, is_worker
from ackwise.middleware.flow.controlrecords import decode as decode_control
from ackwise.middleware.message.message import Delivery
from ackwise.middleware.policies.delaytopic import CANCELLATIONS, wait_of
from ackwise.middleware.progress.commitmetadata import CommitMetadata, decode
from ackwise.middleware.runs.agent import readers_of
from ackwise.plugin.operate.deadletter import LetterId, States
from ackwise.plugin.operate.deadlettertopics import Place
from ackwise.plugin.operate.groupstatus import (
    FORGOTTEN_AFTER,
    LettersStanding,
    LevelStanding,
    PartitionStanding,
    PausedByCommand,
    Standing,
    WorkerStanding,
)
from ackwise.plugin.topics.groupstate import GroupMember, Membership
from ackwise.plugin.topics.leftovers import CopyReader, Left, find_copies_elsewhere, other_letter_topics, reading

#: Seconds for one look.
_TIMEOUT: Final = 60.0

#: Offsets at the end of a partition of dead letters among which the newest is looked for: some may be marks of transactions.
_LAST_FEW: Final = 10

#: Characters at the end of a member's id that tell it from others of its client.
_TAIL: Final = 6


async def look_at(place: Place) -> Standing:
    """How the group of `place` stands now.

    Raises `ConfigurationError` for an unknown group, for a client without the right to read it, and `Unavailable`.
    """
    async with _asking(place) as copies:
        topics = await copies.topics()
        membership = await copies.membership(place.group)
        committed = await copies.committed()
        read = _read_topics(place, membership, committed, topics)
        if not read and not {place.names.retry, place.names.dead_letter} & topics:
            raise ConfigurationError(
                f"there is no consumer group {place.group!r} at {place.settings.brokers}: it has no member, no commit and no topic; "
                "check the name, and that this client may see them"
            )
        delays = [place.names.delay] * (place.names.delay in topics)
        mine = {partition: commit for partition, commit in committed.items() if partition.topic in {*read, *delays}}
        others = sorted(await other_letter_topics(copies, place.names, topics))
        wanted = [*read, *delays, place.names.dead_letter, place.state_topic, place.names.control, *others]
        left = await copies.left(await copies.partitions(wanted), mine)
        paused, workers = await _told(copies, _of(left, place.names.control))
        return Standing(
            place.group,
            membership.state,
            tuple(_named(member) for member in membership.members),
            len((await copies.membership(place.names.relay_group)).members),
            tuple([each async for each in _partitions(copies, read, left, membership, mine, paused, workers, _handlers(place, topics))]),
            tuple(_rungs(_of(left, place.names.delay))),
            await _letters(copies, place.names.dead_letter, _of(left, place.names.dead_letter), _of(left, place.state_topic)),
            tuple(PausedByCommand(str(record.target), record.at_ms) for record in paused),
            tuple(workers),
            tuple([each async for each in _other_letters(copies, others, left, place)]),
            tuple((await find_copies_elsewhere(place.settings, place.names, place.app.sources))[0]) if place.app is not None else (),
        )


@asynccontextmanager
async def _asking(place: Place) -> AsyncIterator[CopyReader]:
    async with reading(place.settings, place.names) as copies, asyncio.timeout(_TIMEOUT):
        try:
            yield copies
        except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as error:
            raise ConfigurationError(
                f"this client may not look at group {place.group!r} ({type(error).__name__}); allow it to describe the group and "
                f"{place.names.relay_group!r}, and to read their topics"
            ) from error


def _read_topics(
    place: Place, membership: Membership, committed: Collection[TopicPartition], topics: Collection[str]
) -> list[str]:  # fmt: skip
    """What the group reads: as the app says, or else what it has committed or is assigned, and its retry topic.

    Sources that a share group consumes are left out: no offset of a consumer group says how far they are.
    """
    if place.app is None:
        known = {partition.topic for partition in (*committed, *membership.owners)}
    else:
        known = set(place.app.matching(topics).sources) if place.app.slots.share is None else set()
    return sorted(known & set(topics) - {place.names.delay, place.names.retry}) + [place.names.retry] * (place.names.retry in topics)


def _handlers(place: Place, topics: Collection[str]) -> dict[str, list[str]]:
    """The topics of each handler; nothing is known of them without an app."""
    if place.app is None:
        return {}
    sources = place.app.matching(topics).sources
    read = {agent.name: [topic for topic in sources if agent in readers_of(place.app.agents, topic)] for agent in place.app.agents}
    return {name: [*its, place.names.retry] for name, its in read.items()}


async def _partitions(
    copies: CopyReader,
    topics: Sequence[str],
    left: Mapping[TopicPartition, Left],
    membership: Membership,
    committed: Mapping[TopicPartition, Any],
    paused: Sequence[ControlRecord],
    workers: Sequence[WorkerStanding],
    handlers: Mapping[str, Sequence[str]],
) -> AsyncIterator[PartitionStanding]:
    owners = membership.owners
    names = {named: worker for worker in reversed(workers) if worker.is_fresh for named in worker.partitions}  # the newest word counts
    for partition, rest in ((partition, rest) for topic in topics for partition, rest in _of(left, topic).items()):
        first = await copies.first(partition, *rest[:2]) if rest.position < rest.end else None
        told = decode(rest.metadata) or CommitMetadata()
        commit = committed.get(partition)
        in_place = [entry for entry in told.in_place if entry.offset >= rest.position]
        yield PartitionStanding(
            partition.topic,
            partition.partition,
            None if (owner := owners.get(partition)) is None else _named(owner),
            None if commit is None else commit.offset,
            rest.end,
            rest.end - rest.position,
            told.finished.bits.bit_count() if told.finished is not None and told.finished.base == rest.position else 0,
            0.0 if rest.position >= rest.end else None if first is None else _age(first.timestamp),
            len(in_place),
            max((entry.attempts for entry in in_place), default=0),
            min((max(0.0, round(entry.due_ms / 1000 - time.time(), 1)) for entry in in_place), default=None),
            tuple(str(record.target) for record in paused if _is_about(record, partition, handlers)),
            None if (worker := names.get(f"{partition.topic}/{partition.partition}")) is None else worker.name,
        )


def _is_about(record: ControlRecord, partition: TopicPartition, handlers: Mapping[str, Sequence[str]]) -> bool:
    handler, paused = record.target
    return paused is not None and tuple(paused) == tuple(partition) if handler is None else partition.topic in handlers.get(handler, ())


def _rungs(left: Mapping[TopicPartition, Left]) -> Iterator[LevelStanding]:
    """What waits on the rungs of a delay topic, those that wait for equally long together, shortest first."""
    waiting: Counter[int] = Counter()
    for partition, rest in left.items():
        if partition.partition != CANCELLATIONS:
            waiting[wait_of(partition.partition)] += rest.end - rest.position
    topic = next((partition.topic for partition in left), "")
    for wait, records in sorted(waiting.items()):
        yield LevelStanding(topic, format_duration(wait), records)


def _of(left: Mapping[TopicPartition, Left], topic: str) -> dict[TopicPartition, Left]:
    return dict(sorted((partition, rest) for partition, rest in left.items() if partition.topic == topic))


def _size(left: Mapping[TopicPartition, Left]) -> int:
    return sum(rest.end - rest.position for rest in left.values())


async def _letters(
    copies: CopyReader, topic: str, left: Mapping[TopicPartition, Left], marks: Mapping[TopicPartition, Left]
) -> LettersStanding | None:
    """By offsets and marks: the topic is not read, however large it is.

    A mark that is older than all dead letters there is about an earlier topic of this name, and is ignored.
    """
    if not left:
        return None
    letters, states = _size(left), States()
    for partition, rest in marks.items():
        async for record in copies.deliveries(partition, rest):
            states.take(record.key, record.value)
    oldest = {partition.partition: await copies.first(partition, *rest[:2]) for partition, rest in left.items() if rest.position < rest.end}
    marked = sum(1 for letter in states.letters if _is_there(letter, oldest.get(letter.partition)))
    newest = [await _newest(copies, partition, rest) for partition, rest in left.items() if rest.position < rest.end]
    ages = [_age(each) for each in newest if each is not None]
    return LettersStanding(topic, letters, max(0, letters - marked), min(ages, default=None))


async def _other_letters(
    copies: CopyReader, topics: Sequence[str], left: Mapping[TopicPartition, Left], place: Place
) -> AsyncIterator[LettersStanding]:
    for topic in topics:
        if (found := await _letters(copies, topic, _of(left, topic), _of(left, place.state_topic))) is not None:
            yield found


def _is_there(letter: LetterId, oldest: Any) -> bool:
    return oldest is not None and letter.offset >= oldest.offset and letter.timestamp_ms >= oldest.timestamp


async def _newest(copies: CopyReader, partition: TopicPartition, left: Left) -> int | None:
    tail = left._replace(position=max(left.position, left.end - _LAST_FEW))
    times = [record.timestamp_ms async for record in copies.deliveries(partition, tail)]
    return max(times, default=None)


async def _told(copies: CopyReader, left: Mapping[TopicPartition, Left]) -> tuple[list[ControlRecord], list[WorkerStanding]]:
    """What is paused by command, and what workers said of themselves, the newest word first; nothing without a control topic."""
    found, said = {}, dict[bytes, Delivery]()
    for partition, rest in left.items():
        async for record in copies.deliveries(partition, rest):
            if record.key is not None and is_worker(record.key):
                said[record.key] = record
                continue
            try:
                control = decode_control(record.key, record.value)
            except UnreadableControl:  # a command about one message
                continue
            found[control.target] = control
    paused = sorted((record for record in found.values() if record.paused), key=lambda record: str(record.target))
    workers = [worker for record in said.values() if (worker := _worker(record)) is not None]
    return paused, sorted(workers, key=lambda worker: (worker.heard, worker.name))


def _worker(record: Delivery) -> WorkerStanding | None:
    """`None` for one that ended, that died long ago, or whose word can't be read."""
    if record.key is None or record.value is None or (heard := _age(record.timestamp_ms)) > FORGOTTEN_AFTER:
        return None
    try:
        said: WorkerRecord = decode_worker(record.key, record.value)
    except UnreadableControl:
        return None
    return WorkerStanding(
        said.host,
        said.pid,
        said.ackwise,
        said.client,
        heard,
        tuple(f"{each.topic}/{each.partition}" for each in said.partitions),
        sum(each.in_hand for each in said.partitions),
        sum(each.running for each in said.partitions),
        said.waiting,
        said.paused,
        said.troubles,
        said.expired,
    )


def _named(member: GroupMember) -> str:
    return f"{member.client} {member.host} …{member.id[-_TAIL:]}"


def _age(timestamp_ms: int) -> float:
    return max(0.0, round(time.time() - timestamp_ms / 1000, 1))
