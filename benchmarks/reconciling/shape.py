"""How large a made-up set of events is and what it looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SECOND: Final = 1_000_000  # all times here are microseconds
DAY: Final = 86400 * SECOND
START: Final = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z

#: A transactional topic has a marker at every so many offsets, and each slice of a partition is whole segments.
SEGMENT: Final = 40

_EVENTS_PER_MESSAGE: Final = 2.1
_LEAST_MESSAGES: Final = 200  # of one partition in one slice: room for what is put at fixed places


@dataclass(frozen=True, slots=True)
class Shape:
    """A set of about `events` events, or more where it would be too small to hold everything.

    Each partition number of a group is one worker, which handles that partition of every topic for a day. A worker's events of one
    slice of the day make a file, or more.
    """

    events: int
    seed: int = 7
    groups: tuple[str, ...] = ("billing", "search")
    """Of the last one files are missing."""
    prefix: str = "topic"
    topics: int = 6
    """Every third is transactional, the first is hot, of the last the oldest records were deleted. The producer tells of the first two."""
    partitions: int = 12
    days: int = 3
    events_per_file: int = 100_000
    """At most."""
    batch: int = 500
    """Messages of a call of a handler."""
    deduplicates: bool = True
    exceptions: float = 0.05
    """The share of messages that have another fate than to be run once."""
    hot: float = 0.3
    """The share that the first partition has of the first topic."""
    rare: int = 1
    """Whatever is rare happens this many times as often; for small sets."""

    @property
    def slices(self) -> int:
        """Of each day, at least three: the middle ones can be lost without anybody coming or going."""
        per_day = self.events / (self.days * len(self.groups) * self.partitions)
        return min(12, max(3, round(per_day / self.events_per_file)))

    @property
    def slice_time(self) -> int:
        return DAY // self.slices

    @property
    def end(self) -> int:
        """When the last event is written."""
        return START + self.days * self.slices * self.slice_time

    def begin_of(self, day: int) -> float:
        """When a day starts, in seconds since 1970."""
        return (START + day * self.slices * self.slice_time) / SECOND

    def messages(self, topic: int, partition: int) -> int:
        """Of one partition in one slice."""
        blocks = len(self.groups) * self.days * self.slices
        of_topic = self.events / _EVENTS_PER_MESSAGE / blocks / self.topics
        share = 1 / self.partitions
        if topic == 0 and self.partitions > 1:
            share = self.hot if partition == 0 else (1 - self.hot) / (self.partitions - 1)
        return max(_LEAST_MESSAGES, round(of_topic * share) // SEGMENT * SEGMENT)

    def topic(self, number: int) -> str:
        return f"{self.prefix}-{number}"

    def is_transactional(self, topic: int) -> bool:
        return topic % 3 == 1

    def is_told(self, topic: int) -> bool:
        """Whether its producer tells what it produced."""
        return topic < 2

    def first_offset(self, topic: int, partition: int) -> int:
        return 1000 * SEGMENT * (topic + 1) + 100 * SEGMENT * partition
