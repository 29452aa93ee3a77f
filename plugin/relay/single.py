"""Single: a record of a delay line that is on its way alone."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from ackwise.middleware.disposition import Failure
from ackwise.middleware.events import Event, EventCode
from ackwise.middleware.message import Delivery, Origin, TopicPartition
from ackwise.middleware.wire import Copy, ForeignCopy, OtherWire, dead_letter, parse_copy, waiting_copy
from ackwise.plugin.group.topicnames import TopicNames
from ackwise.plugin.relay.parcel import Parcel

__all__ = ["Single", "bytes_of", "cancelled", "letter", "opened"]


@dataclass(slots=True, eq=False)
class Single:
    """A record, and what is published for it."""

    record: Delivery
    copy: Copy

    @property
    def first(self) -> int:
        """Its offset."""
        return self.record.offset

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.record.offset + 1


def opened(parcel: Parcel, place: TopicPartition) -> list[Single]:
    """The records of a parcel of the line `place`, each alone. It holds them whole, in the order of their offsets."""
    singles = []
    for offset, copy in enumerate(parcel.batch.copies(), parcel.first):
        here = Origin(*place, offset, parcel.until)
        singles.append(Single(Delivery(*here, copy.key, copy.value, copy.headers, here), copy))
    return singles


def cancelled(single: Single, keys: AbstractSet[bytes], group: str) -> Event | None:
    """What is to be recorded of `single` if one of `keys` cancels it, `None` if none does. Only copies of `group` can be cancelled."""
    record = single.record
    try:
        due, key = waiting_copy(record.headers, group)
        if key not in keys:
            return None
        copy = parse_copy(record, group)
    except (ForeignCopy, OtherWire):
        return None
    origin = copy.origin
    return Event(
        EventCode.CANCELLED,
        origin.topic,
        origin.partition,
        origin.offset,
        copy.handler,
        copy.attempt,
        record_ts_ms=origin.timestamp_ms,
        phys_topic=record.topic,
        phys_partition=record.partition,
        phys_offset=record.offset,
        due_ms=due,
    )


def letter(record: Delivery, names: TopicNames, reason: str, error: Exception, *, now_ms: int) -> Copy:
    """The dead letter of a record that can't be moved, about its message if it is a copy of this group's."""
    try:
        message = parse_copy(record, names.group)
    except (ForeignCopy, OtherWire):
        message = record
    return dead_letter(
        message,
        topic=names.dead_letter,
        partition=record.partition,
        group=names.group,
        handler=message.handler or "-",
        now_ms=now_ms,
        reason=reason,
        failure=Failure.of(error),
    )


def bytes_of(record: Delivery) -> int:
    """The bytes of a record that a line counts."""
    return len(record.key or b"") + len(record.value or b"") + sum(len(value or b"") for _, value in record.headers)
