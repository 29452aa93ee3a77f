"""`Place`: where a record is, written as topic/partition/offset."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ackwise.spark.events.schema import NO_OFFSET

__all__ = ["Place", "place_of"]

_WRITTEN: Final = re.compile(r"(.+)/([0-9]{1,10})/([0-9]{1,19})", re.DOTALL)


class Place(NamedTuple):
    """A topic, a partition of it, and an offset there."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def place_of(text: str) -> Place | None:
    """Return the place in a text, or `None` if it is not a place, or its numbers are too large."""
    found = _WRITTEN.fullmatch(text)
    if found is None or int(found[2]) >= 2**31 or int(found[3]) >= NO_OFFSET:
        return None
    return Place(found[1], int(found[2]), int(found[3]))
