"""Messages that wait in place, read from commits and records without a worker, and commands to retry or bury them.

A burial is written to the control topic if the commits show that its message waits; it carries the timestamp of the record.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Final, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.flow.controlrecords import Do, MessageAt, MessageCommand, key_text
from ackwise.middleware.progress.commitmetadata import InPlace, read_own
from ackwise.middleware.runs.agent import readers_of
from ackwise.plugin.kafka.topicreader import TopicReader
from ackwise.plugin.topics.controltopic import read_commands, write_commands
from ackwise.plugin.topics.group import Group
from ackwise.plugin.topics.groupstate import committed_of
from ackwise.plugin.topics.topicadmin import connected, with_matching

#: Seconds for a command to read commits and records.
_TIMEOUT: Final = 30.0


class CommittedWaiting(NamedTuple):
    """A message that waited in place when its partition was last committed."""

    at: MessageAt
    key: str | None
    """Of its record."""
    attempts: int
    age: float | None
    """Seconds since the timestamp of its record; `None` if the record is gone."""
    due_in: float
    """Seconds."""
    depth: int | None
    """Offsets behind it in its partition, under the order `partition`; with the order `key` only the worker knows."""
    is_buried: bool
    """Whether its burial was requested."""


class _Found(NamedTuple):
    entry: InPlace
    key: bytes | None
    timestamp_ms: int | None
    end: int


def topics_of(group: Group) -> list[str]:
    """The topics of which messages may wait in place. Raises `ConfigurationError` for an instance that broadcasts."""
    if not group.names.all:
        raise ConfigurationError(f"{group.settings.group!r} broadcasts, and has no topic for commands; ask the app itself: app.waiting()")
    return [*group.sources, group.names.retry]


async def look_outside(group: Group) -> list[CommittedWaiting]:
    """What waited in place at the last commits, by partition and offset. Raises as `topics_of`, and `Unavailable`."""
    group = await with_matching(group)
    topics = topics_of(group)
    async with connected(group.settings) as admin, asyncio.timeout(_TIMEOUT):
        found = await _look(admin, group, topics)
    try:
        commands = await read_commands(group.settings, group.names)
    except ConfigurationError:  # without a control topic there are no commands
        commands = []
    buried = {(command.at, command.timestamp_ms) for command in commands if command.do == "bury"}
    orders = {topic: agent.order for topic in group.sources for agent in readers_of(group.agents, topic)}
    now = time.time()
    return [
        CommittedWaiting(
            at,
            key_text(each.key),
            each.entry.attempts,
            None if each.timestamp_ms is None else max(0.0, round(now - each.timestamp_ms / 1000, 3)),
            max(0.0, round(each.entry.due_ms / 1000 - now, 3)),
            max(0, each.end - at.offset - 1) if orders.get(at.topic) == "partition" else None,
            (at, each.timestamp_ms) in buried,
        )
        for at, each in sorted(found.items())
    ]


async def tell(group: Group, at: MessageAt, do: Do) -> None:
    """Tell every worker to retry or to bury the message at `at`; returns once all replicas have it.

    Raises `ConfigurationError` without a control topic, and if a message that is to be buried did not wait in place at the last commit;
    `Unavailable` if the brokers do not answer.
    """
    topics_of(group)
    async with connected(group.settings) as admin, asyncio.timeout(_TIMEOUT):
        timestamp_ms = 0 if do == "retry" else await _timestamp(admin, group, at)
        committed = await committed_of(admin, group.settings.group)
    command = MessageCommand(at, do, timestamp_ms, round(time.time() * 1000))
    over = [
        other._replace(do=None)
        for other in await read_commands(group.settings, group.names)
        if other.at != at and (known := committed.get(TopicPartition(*other.at[:2]))) is not None and other.at.offset < known.offset
    ]
    await write_commands(group.settings, group.names, [command, *over])  # what the group has passed needs no command any more


async def _timestamp(admin: AIOKafkaAdminClient, group: Group, at: MessageAt) -> int:
    found = (await _look(admin, group, [at.topic], partition=at.partition)).get(at)
    if found is None:
        raise ConfigurationError(
            f"{at} did not wait in place when its partition was last committed, and only what waits can be buried; "
            "ackwise inplace list MODULE:APP shows what does, a commit interval after it failed"
        )
    if found.timestamp_ms is None:
        raise ConfigurationError(f"{at} is no longer in its topic, so nothing tells it from another message; it can't be buried")
    return found.timestamp_ms


async def _look(
    admin: AIOKafkaAdminClient, group: Group, topics: Collection[str], *, partition: int | None = None
) -> dict[MessageAt, _Found]:
    entries: dict[TopicPartition, list[InPlace]] = {}
    for place, committed in (await committed_of(admin, group.settings.group)).items():
        is_asked = place.topic in topics and partition in (None, place.partition)
        told = read_own(committed.metadata or "", group.settings.group) if is_asked else None
        if told is not None and told.in_place:
            entries[place] = [entry for entry in told.in_place if entry.offset >= committed.offset]
    found: dict[MessageAt, _Found] = {}
    reader = TopicReader(admin)
    for place, (start, end) in (await reader.bounds(entries)).items():
        for entry in sorted(entries[place]):
            record = await reader.first(place, entry.offset, entry.offset + 1) if start <= entry.offset < end else None
            key, timestamp = (None, None) if record is None else (record.key, record.timestamp)
            found[MessageAt(place.topic, place.partition, entry.offset)] = _Found(entry, key, timestamp, end)
    return found
