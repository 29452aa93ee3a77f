"""Event log format: events as the bytes of a file.

A file is a header block and then event blocks, each `magic | payload length | first seq | count | crc32 | payload`,
little-endian; the checksum covers everything in the block but itself. The header's payload is a JSON object with the
layout version, what all rows of the file share, and how many events of each code the writer had recorded before. The
payload of an event block is `count` records and then the strings that they refer to, each with its length. A record has
no sequence number: it is `first seq` plus its place. In a record the smallest value of a width stands for none, and so
does string 0.

Events of a run differ in their offset, timestamp, execution and keys alone. A *start block* has the record of the first event, which
stands for all, and columns of what differs. An *outcome block* says what became of messages whose start block stands before it in the
file: the sequence number of that, which of its messages, and a record. It repeats no column. `column` makes single events of both, and
whoever reads a file gets those. An outcome whose start block stands in an earlier file is written as a block with columns, too, and with
the sequence number of its first message's start.

Only whole blocks count: reading ends at the first one that is torn, fails its checksum or is out of sequence.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from array import array
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, cast

from ackwise.middleware.events import SCHEMA_VERSION, STARTS, Event, EventCode, Hashes, RunEvents, explode

LAYOUT_VERSION = 3

Format = Literal["q", "i", "h", "b"]

NONE: dict[Format, int] = {"q": -(2**63), "i": -(2**31), "h": -(2**15), "b": -(2**7)}
"""What stands for none, by `struct` format: the smallest value of the width."""


class Field(NamedTuple):
    """One field of a record."""

    name: str
    """The field of `Event`; `at_ns` is when it was recorded, in nanoseconds since 1970, and `mono_ns` the same by a clock
    that no one sets and that all events of a writer share."""
    format: Format
    is_text: bool = False
    """The number is a place in the block's strings."""


# Wide fields first and the whole a multiple of 8 bytes: so every field is aligned and a column is one strided copy.
FIELDS: tuple[Field, ...] = (
    *(Field(name, "q") for name in ("at_ns", "offset", "range_end", "record_ts_ms", "phys_offset", "due_ms", "exec_id", "dedup_hash")),
    Field("mono_ns", "q"),
    *(Field(name, "i") for name in ("partition", "phys_partition", "dedup_epoch", "duration_us", "queue_us", "generation", "order_hash")),
    *(Field(name, "i", True) for name in ("topic", "topic_id", "handler", "phys_topic", "error", "dedup_key", "role", "attrs")),
    *(Field(name, "h") for name in ("attempt", "lost")),
    *(Field(name, "b") for name in ("code", "level", "took_unreleased", "from_commit", "proved")),
)


_FORM = "<" + "".join(field.format for field in FIELDS)
#: Filled up to a multiple of 8 bytes.
_RECORD = struct.Struct(f"{_FORM}{-struct.calcsize(_FORM) % 8}x")
RECORD_SIZE = _RECORD.size  # 144 bytes

_FILE_MAGIC = b"AWHD"
_BLOCK_MAGIC = b"AWEV"
_START_MAGIC = b"AWST"
_OUTCOME_MAGIC = b"AWOC"
_MAGICS = (_BLOCK_MAGIC, _START_MAGIC, _OUTCOME_MAGIC)
_HEAD = struct.Struct("<4sIQI")
_NUMBER = struct.Struct("<I")
#: Of an outcome block: the sequence number of its start block, and how many bytes its mask has.
_START = struct.Struct("<QI")
_HEAD_SIZE = _HEAD.size + _NUMBER.size

#: What may differ between the events of a run; of these, those that grow by one from event to event unless they have a column.
RUN_FIELDS: Final = ("offset", "record_ts_ms", "exec_id", "dedup_hash", "order_hash")
GROWING: Final = ("offset", "exec_id")
#: Of these, those that outcomes share with their start.
STAYING: Final = RUN_FIELDS[:4]

#: Events that are worth their own block.
_LEAST_RUN: Final = 10

#: Start blocks whose outcomes may refer to them: the newest ones.
_MOST_STARTS: Final = 128

_FORMATS: dict[str, Format] = {field.name: field.format for field in FIELDS}
_WIDTHS = {field.name: struct.calcsize(field.format) for field in FIELDS}
#: At which byte of a record each field stands.
_STARTS = dict(zip((field.name for field in FIELDS), accumulate(_WIDTHS.values(), initial=0), strict=False))
_TEXTS = frozenset(field.name for field in FIELDS if field.is_text)
_BOOLEANS = frozenset({"took_unreleased", "from_commit", "proved"})


class EventRow(NamedTuple):
    """One event as it stands in a log."""

    seq: int
    at_ns: int
    event: Event
    mono_ns: int


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What all rows of one file share."""

    writer_id: int
    first_seq: int
    cluster: str | None = None
    group_id: str | None = None
    client: str | None = None
    schema_version: int = SCHEMA_VERSION
    counts: Mapping[int, int] | None = None
    """How many events of each code the writer had recorded before `first_seq`, or `None`: not counted."""

    def encode(self) -> bytes:
        """The header block."""
        facts = {
            "layout": LAYOUT_VERSION,
            "schema_version": self.schema_version,
            "writer_id": self.writer_id,
            "cluster": self.cluster,
            "group_id": self.group_id,
            "client": self.client,
            "counts": self.counts,
        }
        return _block(_FILE_MAGIC, self.first_seq, 0, json.dumps(facts).encode())


@dataclass(frozen=True, slots=True)
class Block:
    """Events in a row, as they are written by one append."""

    first_seq: int
    records: bytes
    """`count` records."""
    strings: tuple[str | None, ...]
    """What the text fields refer to; the first is none."""

    @property
    def count(self) -> int:
        return len(self.records) // RECORD_SIZE

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.count

    def column(self, name: str) -> bytes:
        """One field of all records, side by side, in its format."""
        width = _WIDTHS[name]
        return memoryview(self.records).cast(_FORMATS[name])[_STARTS[name] // width :: RECORD_SIZE // width].tobytes()

    def codes(self) -> dict[int, int]:
        """Return the number of events of each code."""
        codes = self.column("code")
        return {code: codes.count(code) for code in set(codes)}

    def encode(self) -> bytes:
        """The block as it stands in a file."""
        return _block(_BLOCK_MAGIC, self.first_seq, self.count, self.records + _table(self.strings))

    def rows(self) -> Iterator[EventRow]:
        """The events, one by one."""
        for place, values in enumerate(_RECORD.iter_unpack(self.records)):
            fields: dict[str, Any] = {field.name: self._value(field, value) for field, value in zip(FIELDS, values, strict=True)}
            at_ns, mono_ns = fields.pop("at_ns"), fields.pop("mono_ns")
            fields["code"] = EventCode(fields["code"])
            yield EventRow(self.first_seq + place, at_ns, Event(**fields), mono_ns)

    def _value(self, field: Field, value: int) -> object:
        if field.is_text:
            return self.strings[value]
        if value == NONE[field.format]:
            return None
        return bool(value) if field.name in _BOOLEANS else value


@dataclass(frozen=True, slots=True)
class StartBlock:
    """The events of a run, as they are written by one append: of its start, or of what had none."""

    first_seq: int
    count: int
    record: bytes
    """Of the first event."""
    strings: tuple[str | None, ...]
    columns: Mapping[str, bytes]
    """Fields of all events, side by side, of those that differ; a field that has no column grows by one from event to event where
    it may differ and is there, and is the same in all else."""

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.count

    def codes(self) -> dict[int, int]:
        """Return the number of events of each code."""
        return {self.record[_STARTS["code"]]: self.count}

    def encode(self) -> bytes:
        """The block as it stands in a file."""
        which = sum(1 << place for place, name in enumerate(RUN_FIELDS) if name in self.columns)
        columns = [self.columns[name] for name in RUN_FIELDS if name in self.columns]
        payload = b"".join((_NUMBER.pack(which), self.record, *columns, _table(self.strings)))
        return _block(_START_MAGIC, self.first_seq, self.count, payload)

    def column(self, name: str) -> bytes:
        """One field of all events, side by side, in its format: as every reader of the block sees them."""
        if (column := self.columns.get(name)) is not None:
            return column
        first = Block(self.first_seq, self.record, self.strings).column(name)
        if name in GROWING and first != _NONE_BYTES:
            (number,) = _LARGE.unpack(first)
            return array("q", range(number, number + self.count)).tobytes()
        return first * self.count

    def rows(self) -> Iterator[EventRow]:
        """The events, one by one."""
        return _rows(self)


@dataclass(frozen=True, slots=True)
class OutcomeBlock:
    """What became of messages of one start block, as it is written by one append."""

    first_seq: int
    record: bytes
    """Of the first event."""
    strings: tuple[str | None, ...]
    start: StartBlock
    places: tuple[int, ...] | None = None
    """Which of the start block's messages; `None`: all."""

    @property
    def count(self) -> int:
        return self.start.count if self.places is None else len(self.places)

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.count

    def codes(self) -> dict[int, int]:
        """Return the number of events of each code."""
        return {self.record[_STARTS["code"]]: self.count}

    def encode(self, file_first_seq: int = 0) -> bytes:
        """The block as it stands in a file with this first sequence number: with all columns if its start block stands before that."""
        if self.start.first_seq < file_first_seq:
            columns = {name: self.column(name) for name in STAYING}
            return StartBlock(self.first_seq, self.count, self.record, self.strings, columns).encode()
        mask = b"" if self.places is None else _mask(self.places, self.start.count)
        payload = b"".join((_START.pack(self.start.first_seq, len(mask)), mask, self.record, _table(self.strings)))
        return _block(_OUTCOME_MAGIC, self.first_seq, self.count, payload)

    def column(self, name: str) -> bytes:
        """One field of all events, side by side, in its format: as every reader of the block sees them."""
        if name not in STAYING:
            return Block(self.first_seq, self.record, self.strings).column(name) * self.count
        column = self.start.column(name)
        if self.places is None:
            return column
        values = memoryview(column).cast(_FORMATS[name])
        return array(_FORMATS[name], [values[place] for place in self.places]).tobytes()

    def rows(self) -> Iterator[EventRow]:
        """The events, one by one."""
        return _rows(self)


AnyBlock = Block | StartBlock | OutcomeBlock


def _rows(block: StartBlock | OutcomeBlock) -> Iterator[EventRow]:
    records = bytearray(block.record * block.count)
    for name in RUN_FIELDS:
        form, width = _FORMATS[name], _WIDTHS[name]
        memoryview(records).cast(form)[_STARTS[name] // width :: RECORD_SIZE // width] = memoryview(block.column(name)).cast(form)
    return Block(block.first_seq, bytes(records), block.strings).rows()


def encoded(blocks: Iterable[AnyBlock], file_first_seq: int) -> bytes:
    """Return `blocks` as they stand in the file whose first sequence number this is."""
    return b"".join(block.encode(file_first_seq) if isinstance(block, OutcomeBlock) else block.encode() for block in blocks)


@dataclass(frozen=True, slots=True)
class EventLog:
    """One file, read up to its first bad block."""

    header: LogHeader
    blocks: list[AnyBlock]
    is_damaged: bool
    """A whole block follows the first bad one: not a torn tail, something that was durable has been destroyed."""

    @property
    def next_seq(self) -> int:
        return self.blocks[-1].next_seq if self.blocks else self.header.first_seq

    @property
    def last_at_ns(self) -> int:
        """Return when the last event was recorded. Raise `IndexError` if there is none."""
        (at_ns,) = struct.unpack("<q", self.blocks[-1].column("at_ns")[-8:])
        return int(at_ns)

    def column(self, name: str) -> bytes:
        """One field of all records, side by side, in its format."""
        return b"".join(block.column(name) for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that can't be read as an event log, and why: the end of a sentence."""

    reason: str


class EventBuffer:
    """Events that are packed and wait to be written. For one event loop: nothing here is locked."""

    def __init__(
        self, first_seq: int = 0, *, now_ns: Callable[[], int] = time.time_ns, mono_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._first_seq = first_seq
        self._now_ns = now_ns
        self._mono_ns = mono_ns
        self._records: list[bytes] = []
        self._places: dict[str | None, int] = {None: 0}
        self._whole: list[AnyBlock] = []
        self._starts: dict[int, tuple[RunEvents, StartBlock]] = {}  # by the first exec id

    @property
    def next_seq(self) -> int:
        """The sequence number that the next event gets."""
        return self._first_seq + len(self._records)

    # One long expression for speed: a loop over FIELDS takes five times as long (`benchmarks/journal.py`).
    def record(self, event: Event) -> None:
        """Take one event. A number that does not fit its column is cut to the nearest that does."""
        (
            code, topic, partition, offset, handler, attempt, exec_id, dedup_hash, dedup_epoch, record_ts_ms,
            phys_topic, phys_partition, phys_offset, level, due_ms, range_end, lost, took_unreleased, duration_us,
            queue_us, generation, error, dedup_key, role, from_commit, attrs, topic_id, proved, order_hash,
        ) = event  # fmt: skip
        places = self._places
        try:
            self._records.append(
                _RECORD.pack(
                    self._now_ns(),
                    _NONE_Q if offset is None else offset,
                    _NONE_Q if range_end is None else range_end,
                    _NONE_Q if record_ts_ms is None else record_ts_ms,
                    _NONE_Q if phys_offset is None else phys_offset,
                    _NONE_Q if due_ms is None else due_ms,
                    _NONE_Q if exec_id is None else exec_id,
                    _NONE_Q if dedup_hash is None else dedup_hash,
                    self._mono_ns(),
                    _NONE_I if partition is None else partition,
                    _NONE_I if phys_partition is None else phys_partition,
                    _NONE_I if dedup_epoch is None else dedup_epoch,
                    _NONE_I if duration_us is None else duration_us,
                    _NONE_I if queue_us is None else queue_us,
                    _NONE_I if generation is None else generation,
                    _NONE_I if order_hash is None else order_hash,
                    places[topic],
                    0 if topic_id is None else places[topic_id],
                    places[handler],
                    0 if phys_topic is None else places[phys_topic],
                    0 if error is None else places[error],
                    0 if dedup_key is None else places[dedup_key],
                    0 if role is None else places[role],
                    0 if attrs is None else places[attrs],
                    _NONE_H if attempt is None else attempt,
                    _NONE_H if lost is None else lost,
                    code,
                    _NONE_B if level is None else level,
                    _NONE_B if took_unreleased is None else took_unreleased,
                    _NONE_B if from_commit is None else from_commit,
                    _NONE_B if proved is None else proved,
                )
            )
        except KeyError:
            are_known = self._learn((topic, topic_id, handler, phys_topic, error, dedup_key, role, attrs))
            self.record(event if are_known else _fitted(event))
        except (TypeError, struct.error):
            self.record(_fitted(event))

    def record_run(self, events: RunEvents) -> None:
        """Take the events of a run as one. What does not fit a column is taken one by one, each cut as `record` does."""
        whole = (self._outcome(events) or self._start(events)) if len(events) >= _LEAST_RUN else None
        if whole is not None:
            self._whole.append(whole)
            self._first_seq = whole.next_seq
        else:
            for event in explode(events):
                self.record(event)

    def _start(self, events: RunEvents) -> StartBlock | None:
        """A block with all columns, which outcomes refer to if the run starts by it; `None` if something does not fit."""
        if (columns := _columns_of(events)) is None:
            return None
        record, strings = self._record_of_first(events)
        block = StartBlock(self._first_seq, len(events), record, strings, columns)
        if events.code in STARTS and isinstance(events.exec_ids, range):
            self._starts[events.exec_ids.start] = events, block
            if len(self._starts) > _MOST_STARTS:
                del self._starts[next(iter(self._starts))]
        return block

    def _outcome(self, events: RunEvents) -> OutcomeBlock | None:
        """A block that refers to where the run started; `None` if that is not known any more, or was another message."""
        ids = events.exec_ids
        if ids is None or events.code in STARTS or (found := self._start_of(ids[0])) is None:
            return None
        started, block = self._starts[found]
        places = None if len(events) == len(started) else tuple(exec_id - found for exec_id in ids)
        if places is None:
            del self._starts[found]
        elif places[-1] >= len(started) or [*places] != sorted({*places}):
            return None
        if not _is_start_of(started, events, places):
            return None
        record, strings = self._record_of_first(events)
        return OutcomeBlock(self._first_seq, record, strings, block, places)

    def _start_of(self, exec_id: int) -> int | None:
        """The first exec id of the run that this one belongs to."""
        if exec_id in self._starts:
            return exec_id
        return next((first for first, (started, _) in self._starts.items() if first < exec_id < first + len(started)), None)

    def _record_of_first(self, events: RunEvents) -> tuple[bytes, tuple[str | None, ...]]:
        self._close_block()
        self._learn((events.topic, events.handler, events.error, events.attrs))
        self.record(explode(events, 1)[0])
        record, strings = self._records.pop(), tuple(self._places)
        self._places = {None: 0}
        return record, strings

    def seal(self) -> list[AnyBlock]:
        """Take everything out, in blocks."""
        self._close_block()
        sealed, self._whole = self._whole, []
        return sealed

    def _close_block(self) -> None:
        if self._records:
            block = Block(self._first_seq, b"".join(self._records), tuple(self._places))
            self._whole.append(block)
            self._first_seq = block.next_seq
            self._records = []
            self._places = {None: 0}

    def _learn(self, texts: Iterable[object]) -> bool:
        for text in texts:
            if text is not None and not isinstance(text, str):
                return False
            self._places.setdefault(text, len(self._places))
        return True


_NONE_Q, _NONE_I, _NONE_H, _NONE_B = NONE.values()
_LARGE: Final = struct.Struct("<q")
_NONE_BYTES: Final = _LARGE.pack(_NONE_Q)


def parse_log(data: bytes) -> EventLog | Unreadable:
    """Read a file's bytes up to the first block that is torn, fails its checksum or is out of sequence."""
    first = _parse_block(data, 0, (_FILE_MAGIC,))
    if first is None:
        return Unreadable("it does not start with a whole header block")
    facts = json.loads(first.payload)
    if facts["layout"] != LAYOUT_VERSION:
        return Unreadable(
            f"its layout is version {facts['layout']}, and this Ackwise reads version {LAYOUT_VERSION} alone; reconcile it with the "
            "Ackwise that wrote it"
        )
    blocks: list[AnyBlock] = []
    starts: dict[int, StartBlock] = {}
    end, next_seq = first.end, first.first_seq
    while (found := _parse_block(data, end, _MAGICS)) is not None and found.first_seq == next_seq:
        if (block := _read(found, starts)) is None:
            break
        blocks.append(block)
        if isinstance(block, StartBlock):
            starts[block.first_seq] = block
        end, next_seq = found.end, block.next_seq
    return EventLog(_header(facts, first.first_seq), blocks, _has_whole_block(data, end))


def _read(found: _Found, starts: Mapping[int, StartBlock]) -> AnyBlock | None:
    if found.magic == _START_MAGIC:
        return _read_start(found)
    if found.magic == _OUTCOME_MAGIC:
        return _read_outcome(found, starts)
    size = found.events * RECORD_SIZE
    return Block(found.first_seq, found.payload[:size], _strings(found.payload, size))


def _read_start(found: _Found) -> StartBlock | None:
    """`None` if its columns are not as long as they must be, or numbers grow beyond their width."""
    which = int.from_bytes(found.payload[: _NUMBER.size], "little")
    at = _NUMBER.size + RECORD_SIZE
    columns = {}
    for place, name in enumerate(RUN_FIELDS):
        if which >> place & 1:
            width = _WIDTHS[name] * found.events
            columns[name] = found.payload[at : at + width]
            at += width
    if not found.events or at > len(found.payload):
        return None
    record, strings = found.payload[_NUMBER.size :][:RECORD_SIZE], _strings(found.payload, at)
    if any(name not in columns and _LARGE.unpack_from(record, _STARTS[name])[0] + found.events > 2**63 for name in GROWING):
        return None
    return StartBlock(found.first_seq, found.events, record, strings, columns)


def _read_outcome(found: _Found, starts: Mapping[int, StartBlock]) -> OutcomeBlock | None:
    """`None` if it is not about as many messages of a start block before it as it says."""
    first_seq, width = _START.unpack_from(found.payload)
    mask, at = int.from_bytes(found.payload[_START.size :][:width], "little"), _START.size + width
    record, start = found.payload[at:][:RECORD_SIZE], starts.get(first_seq)
    if start is None or len(record) < RECORD_SIZE or mask >> start.count:
        return None
    places = tuple(place for place in range(start.count) if mask >> place & 1) if width else None
    block = OutcomeBlock(found.first_seq, record, _strings(found.payload, at + RECORD_SIZE), start, places)
    return block if 0 < block.count == found.events else None


def _header(facts: Mapping[str, Any], first_seq: int) -> LogHeader:
    counts = facts["counts"]
    return LogHeader(
        facts["writer_id"],
        first_seq,
        facts["cluster"],
        facts["group_id"],
        facts["client"],
        facts["schema_version"],
        None if counts is None else {int(code): number for code, number in counts.items()},
    )


class _Found(NamedTuple):
    magic: bytes
    first_seq: int
    events: int
    payload: bytes
    end: int


def _block(magic: bytes, first_seq: int, count: int, payload: bytes) -> bytes:
    head = _HEAD.pack(magic, len(payload), first_seq, count)
    return b"".join((head, _NUMBER.pack(zlib.crc32(payload, zlib.crc32(head))), payload))


def _parse_block(data: bytes, start: int, magics: Container[bytes]) -> _Found | None:
    if len(data) - start < _HEAD_SIZE:
        return None
    magic, length, first_seq, count = _HEAD.unpack_from(data, start)
    (checksum,) = _NUMBER.unpack_from(data, start + _HEAD.size)
    end = start + _HEAD_SIZE + length
    if magic not in magics or end > len(data):
        return None
    payload = data[start + _HEAD_SIZE : end]
    if zlib.crc32(payload, zlib.crc32(data[start : start + _HEAD.size])) != checksum:
        return None
    return _Found(magic, first_seq, count, payload, end)


def _table(strings: Iterable[str | None]) -> bytes:
    # A lone surrogate has no UTF-8; written as an escape it can be read back by everyone.
    texts = [text.encode(errors="backslashreplace") for text in strings if text is not None]
    return b"".join(_NUMBER.pack(len(text)) + text for text in texts)


def _strings(payload: bytes, position: int) -> tuple[str | None, ...]:
    strings: list[str | None] = [None]
    while position < len(payload):
        (length,) = _NUMBER.unpack_from(payload, position)
        position += _NUMBER.size
        strings.append(payload[position : position + length].decode())
        position += length
    return tuple(strings)


def _columns_of(events: RunEvents) -> dict[str, bytes] | None:
    """The columns of what differs in a run; `None` if something has none or does not fit, and it is to be taken one by one."""
    given = {
        "offset": None if _is_in_a_row(events.offsets) else events.offsets,
        "record_ts_ms": events.record_ts_ms,
        "exec_id": None if events.exec_ids is None or _is_in_a_row(events.exec_ids) else events.exec_ids,
        "dedup_hash": events.dedup_hashes,
        "order_hash": events.order_hashes,
    }
    try:
        columns = {name: _packed(name, values) for name, values in given.items() if values is not None}
    except (TypeError, OverflowError):
        return None
    return None if any(_NONE_BYTES in column for name, column in columns.items() if name != "order_hash") else columns


def _packed(name: str, values: Sequence[int | None]) -> bytes:
    if isinstance(values, Hashes):
        return values.packed()
    if name == "order_hash":
        return array("i", [_NONE_I if value is None else value for value in values]).tobytes()
    return array("q", cast(Sequence[int], values)).tobytes()


def _is_start_of(started: RunEvents, events: RunEvents, places: Sequence[int] | None) -> bool:
    """Return whether `events` are about the messages that `started` at `places`; `None`: about all of them."""
    if _about(started) != _about(events):
        return False
    for before, now in (
        (started.offsets, events.offsets),
        (started.record_ts_ms, events.record_ts_ms),
        (started.exec_ids, events.exec_ids),
        (started.dedup_hashes, events.dedup_hashes),
    ):
        if before is None or now is None:
            if before is not now:
                return False
        elif places is None:
            if before != now:
                return False
        elif [before[place] for place in places] != [*now]:
            return False
    return True


def _about(events: RunEvents) -> tuple[object, ...]:
    return events.topic, events.partition, events.handler, events.attempt, events.dedup_epoch


def _mask(places: Sequence[int], count: int) -> bytes:
    mask = (1 << count) - 1
    for place in {*range(count)}.difference(places):
        mask ^= 1 << place
    return mask.to_bytes(count // 8 + 1, "little")


def _is_in_a_row(numbers: Sequence[int]) -> bool:
    return isinstance(numbers, range) and numbers.step == 1 and numbers.start > -(2**63) and numbers.stop < 2**63


def _has_whole_block(data: bytes, start: int) -> bool:
    for magic in _MAGICS:
        place = data.find(magic, start)
        while place >= 0:
            if _parse_block(data, place, (magic,)) is not None:
                return True
            place = data.find(magic, place + 1)
    return False


def _fitted(event: Event) -> Event:
    """The event with every value in the range of its field."""
    values: list[Any] = [_fit(name, value) for name, value in zip(Event._fields, event, strict=True)]
    return Event(*values)


def _fit(name: str, value: object) -> object:
    if value is None:
        return None
    if name in _TEXTS:
        return str(value)
    if not isinstance(value, int):
        return None  # the type checker would have refused it; an event without it is better than none
    lowest = NONE[_FORMATS[name]]
    return min(max(value, lowest + 1), -lowest - 1)
