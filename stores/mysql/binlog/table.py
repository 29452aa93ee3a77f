"""`TableMap`: what the log says of a table before its rows, with the names of the columns as they were then. Pure.

Not information_schema is asked: that has the names of now, and would give old rows the names of other columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ackwise.stores.mysql.binlog.values import Column, decoder_of, is_numeric, is_text, metadata_size

#: Kinds of optional metadata.
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS = 1, 2, 3, 4, 5, 6
_DEFAULT_MEMBER_CHARSET, _MEMBER_CHARSETS = 10, 11

_ENUM, _SET = 247, 248


def packed_integer(data: bytes, place: int) -> tuple[int, int]:
    """A length-encoded integer, and where what follows begins. Raises `ValueError`."""
    if place >= len(data):
        raise ValueError("an event ends too early")
    first = data[place]
    if first < 251:
        return first, place + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None or place + 1 + size > len(data):
        raise ValueError("an event ends too early")
    return int.from_bytes(data[place + 1 : place + 1 + size], "little"), place + 1 + size


class TableMap:
    """The event: a number for a table, which the rows after it have. Raises `ValueError`."""

    def __init__(self, body: bytes) -> None:
        self.number = int.from_bytes(body[:6], "little")
        schema, place = _name(body, 8)
        table, self._place = _name(body, place)
        self.table = f"{schema}.{table}"
        self._body = body

    def columns(self, encodings: Mapping[int, str | None], texts: Sequence[str] = ()) -> Columns:
        """The columns. `encodings` are Python's names by the number of the collation; `texts` are columns of bytes that are text."""
        body = self._body
        count, place = packed_integer(body, self._place)
        types, place = body[place : place + count], place + count
        length, place = packed_integer(body, place)
        metadata = list(_metadata(types, body[place : place + length]))
        described = _Described(body[place + length + (count + 7) // 8 :])
        plain = [Column("", type_, pair) for type_, pair in zip(types, metadata, strict=True)]
        return Columns(self.table, described.completed(self.table, plain, encodings), texts)


class Columns:
    """The columns of a table, which make rows of bytes. Raises `ValueError` for a type that is not read."""

    def __init__(self, table: str, columns: Sequence[Column], texts: Sequence[str] = ()) -> None:
        self.table = table
        self.by_name = {column.name: column for column in columns}
        self._names = [column.name for column in columns]
        self._decoders = [decoder_of(column._replace(encoding="utf-8") if column.name in texts else column) for column in columns]

    def __len__(self) -> int:
        return len(self._names)

    def row(self, data: bytes, place: int) -> tuple[dict[str, Any], int]:
        """The row that begins at `place`, and where the next one does. Written the long way: it runs once per row."""
        nulls = int.from_bytes(data[place : place + (len(self._names) + 7) // 8], "little")
        place += (len(self._names) + 7) // 8
        row: dict[str, Any] = {}
        for number, name in enumerate(self._names):
            if nulls >> number & 1:
                row[name] = None
            else:
                row[name], place = self._decoders[number](data, place)
        if place > len(data):
            raise ValueError(f"a row of {self.table} ends too early")
        return row, place


class _Described:
    """The optional metadata, which binlog_row_metadata = FULL writes."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, bytes] = {}
        place = 0
        while place < len(data):
            kind = data[place]
            length, start = packed_integer(data, place + 1)
            place = start + length
            self._fields[kind] = data[start:place]

    def completed(self, table: str, columns: Sequence[Column], encodings: Mapping[int, str | None]) -> list[Column]:
        """The columns with all that is said of them."""
        if _NAMES not in self._fields:
            raise ValueError(f"the log does not name the columns of {table}: it was written while binlog_row_metadata was not FULL")
        names = [name.decode("utf-8") for name in _texts(self._fields[_NAMES])]
        if len(names) != len(columns):
            raise ValueError(f"the log names {len(names)} columns of {table}, which has {len(columns)}")
        signs = self._signs()
        texts = iter(self._collations(_DEFAULT_CHARSET, _CHARSETS, sum(is_text(c.real_type) for c in columns)))
        members = iter(self._collations(_DEFAULT_MEMBER_CHARSET, _MEMBER_CHARSETS, sum(c.real_type in (_ENUM, _SET) for c in columns)))
        lists = {_ENUM: _lists(self._fields.get(_ENUM_MEMBERS, b"")), _SET: _lists(self._fields.get(_SET_MEMBERS, b""))}
        made = []
        for column, name in zip(columns, names, strict=True):
            of, kind = column._replace(name=name), column.real_type
            if is_numeric(kind):
                of = of._replace(unsigned=next(signs, False))
            elif is_text(kind):
                of = of._replace(encoding=_encoding(encodings, next(texts), name, table))
            elif kind in (_ENUM, _SET):
                encoding = _encoding(encodings, next(members), name, table) or "latin-1"
                of = of._replace(members=tuple(each.decode(encoding, "surrogateescape") for each in next(lists[kind], [])))
            made.append(of)
        return made

    def _signs(self) -> Iterator[bool]:
        return (bool(byte >> bit & 1) for byte in self._fields.get(_SIGNS, b"") for bit in range(7, -1, -1))

    def _collations(self, default: int, each: int, count: int) -> list[int]:
        if each in self._fields:
            return _numbers(self._fields[each])
        first, *pairs = _numbers(self._fields.get(default, b"\x3f"))
        others = dict(zip(pairs[::2], pairs[1::2], strict=False))
        return [others.get(number, first) for number in range(count)]


#: The collation of bytes.
_BINARY: Final = 63


def _encoding(encodings: Mapping[int, str | None], collation: int, column: str, table: str) -> str | None:
    if collation == _BINARY:
        return None
    if collation not in encodings:
        raise ValueError(f"column {column} of {table} has collation {collation}, whose character set is not known here")
    return encodings[collation]


def _metadata(types: bytes, data: bytes) -> Iterator[tuple[int, int]]:
    place = 0
    for type_ in types:
        size = metadata_size(type_)
        if place + size > len(data):
            raise ValueError("the description of a table ends too early")
        yield (data[place] if size else 0, data[place + 1] if size > 1 else 0)
        place += size


def _name(body: bytes, place: int) -> tuple[str, int]:
    """A name after its length, with a zero byte behind it."""
    if place >= len(body):
        raise ValueError("the description of a table ends too early")
    end = place + 1 + body[place]
    return body[place + 1 : end].decode("utf-8", "surrogateescape"), end + 1


def _numbers(data: bytes) -> list[int]:
    found, place = [], 0
    while place < len(data):
        number, place = packed_integer(data, place)
        found.append(number)
    return found


def _texts(data: bytes) -> list[bytes]:
    found, place = [], 0
    while place < len(data):
        length, place = packed_integer(data, place)
        found.append(data[place : place + length])
        place += length
    return found


def _lists(data: bytes) -> Iterator[list[bytes]]:
    """Lists of texts, each after its length."""
    place = 0
    while place < len(data):
        count, place = packed_integer(data, place)
        texts = []
        for _ in range(count):
            length, place = packed_integer(data, place)
            texts.append(data[place : place + length])
            place += length
        yield texts
