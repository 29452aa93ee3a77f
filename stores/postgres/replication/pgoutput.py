"""The messages of PostgreSQL's output plug-in `pgoutput`, protocol version 1, as values. Pure.

Any bytes end in a message or a `ValueError`.

The layout is that of "Logical Replication Message Formats" in PostgreSQL's manual. Values come as text, as the server writes them.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple


class Unchanged:
    """A value stored out of line (TOAST) that an update left as it was: the log does not repeat it."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()

Value = bytes | None | Unchanged
"""A column's text in the encoding of the database, NULL, or a text that the log does not repeat."""


class Begin(NamedTuple):
    """A transaction starts. It has committed at `commit_lsn`."""

    commit_lsn: int
    committed_us: int
    """Microseconds since 2000-01-01 UTC."""
    xid: int


class Commit(NamedTuple):
    """A transaction ends. The next one starts at or after `end_lsn`."""

    commit_lsn: int
    end_lsn: int
    committed_us: int


class Column(NamedTuple):
    """A column of a relation. `type_oid` and `modifier` are those of pg_attribute."""

    name: str
    type_oid: int
    modifier: int
    is_key: bool


class Relation(NamedTuple):
    """The columns of a table. It comes before the table's first change, and again when the table has changed."""

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[Column, ...]


class Inserted(NamedTuple):
    """A new row."""

    oid: int
    row: tuple[Value, ...]


class Updated(NamedTuple):
    """A row that changed; `old` is its old key, or all of the old row under REPLICA IDENTITY FULL."""

    oid: int
    row: tuple[Value, ...]
    old: tuple[Value, ...] | None
    old_is_key: bool


class Deleted(NamedTuple):
    """A row that is gone: its key, or all of it under REPLICA IDENTITY FULL."""

    oid: int
    old: tuple[Value, ...]
    old_is_key: bool


class Truncated(NamedTuple):
    """Tables that were emptied."""

    oids: tuple[int, ...]


class Ignored(NamedTuple):
    """A message that changes no row: a type, an origin, or what an application wrote into the log."""

    kind: str


Message = Begin | Commit | Relation | Inserted | Updated | Deleted | Truncated | Ignored

_BEGIN: Final = struct.Struct("!QqI")
_COMMIT: Final = struct.Struct("!BQQq")
_OID: Final = struct.Struct("!I")
_COUNT: Final = struct.Struct("!H")
_LENGTH: Final = struct.Struct("!I")
_COLUMN: Final = struct.Struct("!Ii")
_TRUNCATE: Final = struct.Struct("!IB")
_MESSAGE: Final = struct.Struct("!BQ")


def parse(data: bytes, codec: str = "utf-8") -> Message:
    """Return the message that is `data`, all of it; `codec` is that of its names.

    Raises `ValueError` with what is wrong; it repeats none of the bytes.
    """
    kind = data[:1]
    try:
        match kind:
            case b"I":
                return _inserted(data)
            case b"B":
                return Begin(*_whole(_BEGIN, data))
            case b"C":
                _, commit_lsn, end_lsn, committed_us = _whole(_COMMIT, data)
                return Commit(commit_lsn, end_lsn, committed_us)
            case b"U":
                return _updated(data)
            case b"D":
                return _deleted(data)
            case b"R":
                return _relation(data, codec)
            case b"T":
                return _truncated(data)
            case b"Y":
                return _type(data)
            case b"O":
                return _origin(data)
            case b"M":
                return _logical_message(data)
    except struct.error:
        raise ValueError(f"a message of kind {_shown(kind)} ends too early") from None
    raise ValueError(f"a message has the kind {_shown(kind)}, which version 1 of the protocol does not have")


def _whole(layout: struct.Struct, data: bytes) -> tuple[int, ...]:
    _require_end(data, 1 + layout.size)
    return layout.unpack_from(data, 1)


def _inserted(data: bytes) -> Inserted:
    (oid,) = _OID.unpack_from(data, 1)
    _require_marker(data, 5, b"N")
    row, end = _row(data, 6)
    _require_end(data, end)
    return Inserted(oid, row)


def _updated(data: bytes) -> Updated:
    (oid,) = _OID.unpack_from(data, 1)
    old, old_is_key, place = None, False, 5
    if (marker := data[5:6]) in (b"K", b"O"):
        old, place = _row(data, 6)
        old_is_key = marker == b"K"
    _require_marker(data, place, b"N")
    row, end = _row(data, place + 1)
    _require_end(data, end)
    return Updated(oid, row, old, old_is_key)


def _deleted(data: bytes) -> Deleted:
    (oid,) = _OID.unpack_from(data, 1)
    marker = data[5:6]
    if marker not in (b"K", b"O"):
        raise ValueError(f"a deletion has the marker {_shown(marker)} in place of K or O")
    old, end = _row(data, 6)
    _require_end(data, end)
    return Deleted(oid, old, marker == b"K")


def _row(data: bytes, place: int) -> tuple[tuple[Value, ...], int]:
    """The values of a row that starts at `place`, and where it ends. Written the long way: it runs once per row."""
    (count,) = _COUNT.unpack_from(data, place)
    place += 2
    if count > len(data) - place:  # each value has one byte at least
        raise ValueError(f"a row promises {count} columns and ends before them")
    values: list[Value] = []
    for _ in range(count):
        kind = data[place : place + 1]
        place += 1
        if kind == b"t":
            (length,) = _LENGTH.unpack_from(data, place)
            place += 4
            end = place + length
            if end > len(data):
                raise ValueError(f"a value promises {length} bytes and ends before them")
            values.append(data[place:end])
            place = end
        elif kind == b"n":
            values.append(None)
        elif kind == b"u":
            values.append(UNCHANGED)
        else:
            raise ValueError(f"a value has the kind {_shown(kind)} in place of t, n or u")
    return tuple(values), place


def _relation(data: bytes, codec: str) -> Relation:
    (oid,) = _OID.unpack_from(data, 1)
    schema, place = _text(data, 5, codec)
    table, place = _text(data, place, codec)
    identity = data[place : place + 1]
    if identity not in (b"d", b"n", b"f", b"i"):
        raise ValueError(f"a relation has the replica identity {_shown(identity)} in place of d, n, f or i")
    (count,) = _COUNT.unpack_from(data, place + 1)
    place += 3
    columns: list[Column] = []
    for _ in range(count):
        if (flags := data[place : place + 1]) not in (b"\0", b"\1"):
            raise ValueError(f"a column has the flags {_shown(flags)} in place of 0 or 1")
        name, place = _text(data, place + 1, codec)
        type_oid, modifier = _COLUMN.unpack_from(data, place)
        place += _COLUMN.size
        columns.append(Column(name, type_oid, modifier, flags == b"\1"))
    _require_end(data, place)
    return Relation(oid, schema or "pg_catalog", table, identity.decode(), tuple(columns))


def _truncated(data: bytes) -> Truncated:
    count, flags = _TRUNCATE.unpack_from(data, 1)
    if flags > 3:
        raise ValueError(f"a truncation has the flags {flags}, and only CASCADE and RESTART IDENTITY are known")
    _require_end(data, 6 + 4 * count)
    return Truncated(struct.unpack_from(f"!{count}I", data, 6))


def _type(data: bytes) -> Ignored:
    _OID.unpack_from(data, 1)
    _, place = _text(data, 5)
    _, place = _text(data, place)
    _require_end(data, place)
    return Ignored("type")


def _origin(data: bytes) -> Ignored:
    struct.unpack_from("!Q", data, 1)
    _, place = _text(data, 9)
    _require_end(data, place)
    return Ignored("origin")


def _logical_message(data: bytes) -> Ignored:
    _MESSAGE.unpack_from(data, 1)
    _, place = _text(data, 10)
    (length,) = _LENGTH.unpack_from(data, place)
    _require_end(data, place + 4 + length)
    return Ignored("message")


def _text(data: bytes, place: int, codec: str = "utf-8") -> tuple[str, int]:
    """A name that ends with a zero byte, and where what follows starts."""
    end = data.find(b"\0", place)
    if end < 0:
        raise ValueError("a name does not end")
    return data[place:end].decode(codec, "surrogateescape"), end + 1


def _require_marker(data: bytes, place: int, marker: bytes) -> None:
    if (found := data[place : place + 1]) != marker:
        raise ValueError(f"a row has the marker {_shown(found)} in place of {_shown(marker)}")


def _require_end(data: bytes, end: int) -> None:
    if len(data) != end:
        what = "goes on after its end" if len(data) > end else "ends too early"
        raise ValueError(f"a message of kind {_shown(data[:1])} {what}: it has {len(data)} bytes in place of {end}")


def _shown(byte: bytes) -> str:
    """One byte for a sentence: a letter, or its number."""
    if not byte:
        return "nothing"
    return byte.decode() if 32 < byte[0] < 127 else f"byte {byte[0]}"
