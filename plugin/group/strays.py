"""Strays: dead letters in a topic that the app has no longer, after its configuration was changed.

They wait for people, who look where the app sends them now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from aiokafka import TopicPartition

from ackwise.middleware.controlrecord import letters_topic
from ackwise.plugin.group.copyreader import CopyReader, look
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.settings.hostsettings import HostSettings

__all__ = ["Stray", "Strays", "find_strays", "other_letter_topics"]

#: Seconds for the whole look.
_TIMEOUT: Final = 15.0


class Stray(NamedTuple):
    """A topic of an earlier configuration, and how many records are left in it."""

    topic: str
    records: int
    group: str

    @property
    def sentence(self) -> str:
        """What it means, and what to do."""
        has = f"topic {self.topic!r} has {self.records} {'record' if self.records == 1 else 'records'}"
        return (
            f"{has} of dead letters of group {self.group!r}, which go to another topic now; ackwise dlq list {self.group} "
            f"--dlq {self.topic} shows them, and dlq export and import send them again"
        )


class Strays(NamedTuple):
    """What was found. `unread` says why not everything was looked at, if so."""

    found: Sequence[Stray]
    unread: str | None = None


async def find_strays(settings: HostSettings, names: TopicNames) -> Strays:
    """Look for topics of an earlier configuration in which records are left. Raises `Unavailable` if the brokers do not answer."""
    if not names.all:
        return Strays(())
    found, unread = await look(settings, names, lambda reader: _look(reader, names), within=_TIMEOUT)
    return Strays(found or (), unread)


async def _look(reader: CopyReader, names: TopicNames) -> list[Stray]:
    letters = sorted(await other_letter_topics(reader, names, await reader.topics()))
    records = dict.fromkeys(letters, 0)
    for partition, rest in (await reader.left(await reader.partitions(letters), {})).items():
        records[partition.topic] += rest.end - rest.position
    return [Stray(topic, number, names.group) for topic, number in records.items() if number]


async def other_letter_topics(reader: CopyReader, names: TopicNames, there: Collection[str]) -> set[str]:
    """The topics among those that are `there` which had the dead letters of the group before; its control topic remembers their names."""
    known = {names.default_dead_letter}
    if names.control in there:
        place = TopicPartition(names.control, 0)
        left = await reader.left([place], {})
        async for record in reader.deliveries(place, left[place]):
            if (topic := letters_topic(record.key)) is not None:
                known.add(topic)
    return (known & {*there}) - {names.dead_letter}
