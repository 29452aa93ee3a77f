"""Position: where a partition goes on, and what is remembered of it."""

from __future__ import annotations

from typing import NamedTuple

from ackwise.plugin.client.offsets import Topic

__all__ = ["Position"]


class Position(NamedTuple):
    """Where a partition goes on."""

    next: int
    committed: int | None  #: the offset that the broker has of this group
    generation: int | None = None  #: of the offset in the database, if it is kept there
    metadata: str = ""  #: what was committed beside it, unless that is about a topic that is gone
    topic: Topic = Topic()  #: with the number of partitions that it had when the group began with it
    end: int | None = None  #: of the log, when it was asked
    skips: bool = False  #: records before it are passed over, and nothing says so yet
