"""Events: their codes and columns, and the sink that the pipeline gives them to.

The Spark half judges by these alone. Codes are stable forever. Message events carry the coordinates of the *origin*
record; partition-level events (code >= 20) carry physical ones. Events of the producer side (`OUTGOING`) are about a record that
somebody sends: its own topic and, once the broker has acknowledged it, its own partition and offset.
"""

from __future__ import annotations

import enum
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, cast, overload, runtime_checkable

SCHEMA_VERSION = 3


class EventCode(enum.IntEnum):
    """What happened. Below 20: to one message. From 20: to a partition. From 30: to the writer. From 40: to a row of an outbox."""

    RECEIVED = 1
    CLAIMED = 2
    SUCCEEDED = 3
    FAILED = 4
    SENT_BACK = 5
    DEAD_LETTERED = 6
    DUP_SUPPRESSED = 7
    IN_FLIGHT_ELSEWHERE = 8
    SKIPPED = 9
    CLAIM_LOST = 10
    REDELIVERED = 11
    STALE = 12
    DROPPED = 13
    CANCELLED = 14
    PRODUCED = 15
    PRODUCE_FAILED = 16
    RELEASED = 17
    STARTED = 18
    LATE_SUCCESS = 19
    COMMITTED = 20
    ASSIGNED = 21
    REVOKED = 22
    GAP = 23
    SEEK = 24
    BROKER_OFFSETS = 25
    RECEIVED_RANGE = 26
    TX_SETTLED = 27
    ACCEPT_REFUSED = 28
    MARKED = 29
    SESSION_START = 30
    HEARTBEAT = 31
    SESSION_END = 32
    OUTBOX_STORED = 40
    OUTBOX_SENT = 41
    OUTBOX_PARKED = 42
    OUTBOX_REQUEUED = 43
    OUTBOX_CHECKED = 44
    RELAY_POSITION = 45
    OUTBOX_EXPIRED = 46


OUTGOING: Final = frozenset(
    {
        EventCode.PRODUCED,
        EventCode.PRODUCE_FAILED,
        EventCode.OUTBOX_STORED,
        EventCode.OUTBOX_SENT,
        EventCode.OUTBOX_PARKED,
        EventCode.OUTBOX_REQUEUED,
        EventCode.OUTBOX_CHECKED,
        EventCode.RELAY_POSITION,
        EventCode.OUTBOX_EXPIRED,
    }
)
"""The codes of the producer side. `dedup_key` is the message id; none of them is about a message that the group consumes."""


MOST_SPAN: Final = 65_536
"""The most offsets from the first to the last of one event about many messages."""


class Kind(enum.Enum):
    """The physical type of a column, named so that neither Arrow nor Spark is needed to say it."""

    INT8 = "int8"
    INT16 = "int16"
    INT32 = "int32"
    INT64 = "int64"
    BOOL = "bool"
    STRING = "string"
    TIMESTAMP = "timestamp[us, UTC]"
    INT32_LIST = "list<int32>"
    INT64_LIST = "list<int64>"


class Column(NamedTuple):
    """One column of the exported table."""

    name: str
    kind: Kind
    nullable: bool = True


EVENT_COLUMNS: tuple[Column, ...] = (
    Column("schema_version", Kind.INT16, nullable=False),
    Column("writer_id", Kind.INT64, nullable=False),
    Column("seq", Kind.INT64, nullable=False),
    Column("event_type", Kind.INT8, nullable=False),
    Column("event_ts", Kind.TIMESTAMP, nullable=False),
    Column("cluster", Kind.STRING),
    Column("group_id", Kind.STRING),
    Column("client", Kind.STRING),
    Column("handler", Kind.STRING),
    Column("topic", Kind.STRING),
    Column("topic_id", Kind.STRING),
    Column("partition", Kind.INT32),
    Column("offset", Kind.INT64),
    Column("range_end", Kind.INT64),
    Column("record_ts", Kind.TIMESTAMP),
    Column("phys_topic", Kind.STRING),
    Column("phys_partition", Kind.INT32),
    Column("phys_offset", Kind.INT64),
    Column("attempt", Kind.INT16),
    Column("level", Kind.INT8),
    Column("due_ts", Kind.TIMESTAMP),
    Column("exec_id", Kind.INT64),
    Column("dedup_hash", Kind.INT64),
    Column("dedup_key", Kind.STRING),
    Column("dedup_epoch", Kind.INT32),
    Column("lost", Kind.INT16),
    Column("took_unreleased", Kind.BOOL),
    Column("duration_us", Kind.INT32),
    Column("queue_us", Kind.INT32),
    Column("generation", Kind.INT32),
    Column("error", Kind.STRING),
    Column("role", Kind.STRING),
    Column("from_commit", Kind.BOOL),
    Column("attrs", Kind.STRING),
    Column("proved", Kind.BOOL),
    Column("mono_ns", Kind.INT64),
    Column("order_hash", Kind.INT32),
)
"""The columns of an event. `from_commit`: ASSIGNED, its position came from a committed offset."""

RUN_COLUMNS: tuple[Column, ...] = (
    Column("n", Kind.INT32),
    Column("last_offset", Kind.INT64),
    Column("masks", Kind.INT64_LIST),
    Column("record_ts_max", Kind.TIMESTAMP),
    Column("record_ms", Kind.INT64_LIST),
    Column("hashes", Kind.INT64_LIST),
    Column("order_hashes", Kind.INT32_LIST),
    Column("at_us", Kind.INT32_LIST),
    Column("seqs", Kind.INT32_LIST),
    Column("took_us", Kind.INT32_LIST),
    Column("ok_n", Kind.INT32),
    Column("ok_masks", Kind.INT64_LIST),
    Column("ok_seq", Kind.INT64),
    Column("ok_seqs", Kind.INT32_LIST),
    Column("ok_ts", Kind.TIMESTAMP),
    Column("ok_ts_max", Kind.TIMESTAMP),
    Column("ok_us", Kind.INT32_LIST),
    Column("ok_mono_ns", Kind.INT64),
    Column("least_us", Kind.INT64),
)
"""What a run row also has: the same happened to `n` messages, and the columns of an event describe the first one.

A list of values has one for each message, in the order of offsets. `stores/journal/runs.py` makes run rows and says what each
column means.
"""

COLUMNS: tuple[Column, ...] = (*EVENT_COLUMNS, *RUN_COLUMNS)
"""The exported table: a row per event, whose `n` is null, or per run."""


class Event(NamedTuple):
    """One event as the pipeline or a host hands it over; the sink adds writer, sequence, time, cluster and group.

    A number that does not fit its column (`COLUMNS`) is cut to the nearest that does, so that no event is refused.
    """

    code: EventCode
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    handler: str | None = None
    attempt: int | None = None
    exec_id: int | None = None
    dedup_hash: int | None = None
    dedup_epoch: int | None = None
    record_ts_ms: int | None = None
    phys_topic: str | None = None
    """Only where the copy was not read at its origin."""
    phys_partition: int | None = None
    phys_offset: int | None = None
    level: int | None = None
    due_ms: int | None = None
    """Epoch milliseconds."""
    range_end: int | None = None
    """Exclusive end, for the codes that are about a range; for BROKER_OFFSETS the log's end (`offset` is its start)."""
    lost: int | None = None
    took_unreleased: bool | None = None
    duration_us: int | None = None
    queue_us: int | None = None
    generation: int | None = None
    error: str | None = None
    """A class name or a dead-letter reason, never a message text."""
    dedup_key: str | None = None
    role: str | None = None
    from_commit: bool | None = None
    attrs: str | None = None
    """A JSON object."""
    topic_id: str | None = None
    """The topic's UUID where the client knows it: tells a topic from its re-created successor."""
    proved: bool | None = None
    """GAP: whether the fetch is known to have started where the one before it ended. `None`: it is not."""
    order_hash: int | None = None
    """CLAIMED and STARTED of a handler with an order by key: 32 bits of a hash of the key."""


STARTS: Final = frozenset({EventCode.CLAIMED, EventCode.STARTED})
"""The codes of a message that starts to run."""


class Hashes(Sequence[int]):
    """The hashes of claim ids of 16 bytes, their first 8, which nobody computes who does not look at them."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Sequence[bytes]) -> None:
        self._ids = ids

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[int]: ...
    def __getitem__(self, place: int | slice) -> int | Sequence[int]:
        return Hashes(self._ids[place]) if isinstance(place, slice) else int.from_bytes(self._ids[place][:8], "big", signed=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashes) and self._ids == other._ids

    def __hash__(self) -> int:
        return hash((*self._ids,))

    def __iter__(self) -> Iterator[int]:
        return iter(array("q", self.packed()))

    def packed(self) -> bytes:
        """All of them, side by side, little-endian."""
        halves = array("q", b"".join(self._ids))[::2]
        halves.byteswap()
        return halves.tobytes()


@dataclass(frozen=True, slots=True)
class RunEvents:
    """The same thing happened to each message of a run, all read at their origin: one event for each of `offsets`.

    What is a sequence has one value for each of them; everything else is that of all, as in `Event`.
    """

    code: EventCode
    topic: str
    partition: int
    offsets: Sequence[int]
    handler: str
    attempt: int
    record_ts_ms: Sequence[int]
    exec_ids: Sequence[int] | None = None
    dedup_hashes: Sequence[int] | None = None
    dedup_epoch: int | None = None
    lost: int | None = None
    took_unreleased: bool | None = None
    duration_us: int | None = None
    error: str | None = None
    attrs: str | None = None
    order_hashes: Sequence[int | None] | None = None

    def __len__(self) -> int:
        return len(self.offsets)


def explode(events: RunEvents, most: int | None = None) -> list[Event]:
    """The events of a run, one for each message; the first `most` of them, if that is given."""
    hashes = None if events.dedup_hashes is None else [*events.dedup_hashes[:most]]
    return [
        Event(
            events.code,
            events.topic,
            events.partition,
            offset,
            events.handler,
            events.attempt,
            None if events.exec_ids is None else events.exec_ids[place],
            None if hashes is None else hashes[place],
            events.dedup_epoch,
            record_ts_ms,
            lost=events.lost,
            took_unreleased=events.took_unreleased,
            duration_us=events.duration_us,
            error=events.error,
            attrs=events.attrs,
            order_hash=None if events.order_hashes is None else events.order_hashes[place],
        )
        for place, (offset, record_ts_ms) in enumerate(zip(events.offsets[:most], events.record_ts_ms[:most], strict=True))
    ]


class Durable(NamedTuple):
    """How far the events of a writer are durable."""

    writer_id: int
    last_seq: int
    """Everything up to here is; -1: nothing yet."""


class EventSink(Protocol):
    """Where events go. Recording buffers; only a flush that returned makes them durable.

    A sink that numbers its events may have a property `durable`, a `Durable`; what it says is left in the metadata of
    commits.
    """

    def record(self, event: Event) -> None:
        """Take one event. Cheap, does no I/O and does not raise."""

    async def flush(self) -> None:
        """Return once everything recorded so far is durable. Raises `EventLogUnavailable`; nothing is dropped then."""

    async def open(self) -> None:
        """Start writing: SESSION_START first. Raises `EventLogUnavailable` or `ConfigurationError`."""

    async def close(self) -> None:
        """Write SESSION_END, make everything durable and let go of the files."""


@runtime_checkable
class RunSink(Protocol):
    """A sink that takes the events of a run as one. Any other sink is given them one by one."""

    def record_run(self, events: RunEvents) -> None:
        """Take the events of a run, in the order of their offsets. As `EventSink.record`."""


@runtime_checkable
class MarkSink(Protocol):
    """A sink whose events survive the death of the process before they are durable. Others have no start marks."""

    def mark(self) -> None:
        """Write everything recorded so far, without waiting for the disk: a process that is killed by then leaves it behind.

        Raises `EventLogUnavailable`; nothing is dropped then.
        """


def marks_of(topic: str, partition: int, handler: str, offsets: Sequence[int]) -> Iterator[Event]:
    """Yield the MARKED events that cover `offsets`, which ascend: messages that `handler` may start to run, one by one."""
    start = 0
    for place, offset in enumerate(offsets):
        if offset - offsets[start] >= MOST_SPAN:
            yield _mark_of(topic, partition, handler, offsets[start:place])
            start = place
    yield _mark_of(topic, partition, handler, offsets[start:])


def _mark_of(topic: str, partition: int, handler: str, offsets: Sequence[int]) -> Event:
    first, end = offsets[0], offsets[-1] + 1
    attrs = None if end - first == len(offsets) else json.dumps({"masks": masks_of(offsets)})
    return Event(EventCode.MARKED, topic, partition, first, handler, range_end=end, attrs=attrs)


def masks_of(offsets: Sequence[int]) -> list[int]:
    """Return a mask per word of 64 offsets, from that of the first of `offsets` to that of the last; they are signed, as SQL has them."""
    first = offsets[0] >> 6
    masks = [0] * ((offsets[-1] >> 6) - first + 1)
    for offset in offsets:
        masks[(offset >> 6) - first] |= 1 << (offset & 63)
    return [mask - (1 << 64) if mask >> 63 else mask for mask in masks]


# By the name, as the protocols look: `isinstance` of one takes Python 3.11 as long as recording a batch.


def run_sink(sink: EventSink | None) -> RunSink | None:
    """Return `sink` if it takes the events of a run as one."""
    return cast(RunSink, sink) if hasattr(sink, "record_run") else None


def mark_sink(sink: EventSink | None) -> MarkSink | None:
    """Return `sink` if it has start marks."""
    return cast(MarkSink, sink) if hasattr(sink, "mark") else None


def durable_of(sink: EventSink | None) -> Durable | None:
    """Return how far the events of `sink` are durable, if it reports that."""
    found = getattr(sink, "durable", None)
    return found if isinstance(found, Durable) else None
