"""Strays: what a group wrote into topics of its own that its app has no longer, after its configuration was changed.

Copies of other delay levels, and messages that were to be sent later, are read by the relay until nothing is left. Dead letters wait for
people, who look where the app sends them now.
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
    are_letters: bool
    group: str

    @property
    def sentence(self) -> str:
        """What it means, and what to do."""
        has = f"topic {self.topic!r} has {self.records} {'record' if self.records == 1 else 'records'}"
        if self.are_letters:
            return (
                f"{has} of dead letters of group {self.group!r}, which go to another topic now; ackwise dlq list {self.group} "
                f"--dlq {self.topic} shows them, and dlq export and import send them again"
            )
        return (
            f"{has} of group {self.group!r} that wait, and the app has no such level or sends nothing later now; its relay reads the topic "
            "until nothing is left, so let it run"
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
    there = await reader.topics()
    read = names.with_levels_of(there)
    levels = sorted({*read.delays, *read.sends}.difference(names.all) & there)
    letters = sorted(await other_letter_topics(reader, names, there))
    committed = await reader.committed_by_relay() if levels else {}
    left = await reader.left(await reader.partitions([*levels, *letters]), committed)
    records = dict.fromkeys([*levels, *letters], 0)
    for partition, rest in left.items():
        records[partition.topic] += rest.end - rest.position
    return [Stray(topic, number, topic in letters, names.group) for topic, number in records.items() if number]


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
