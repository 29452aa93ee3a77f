"""Rows of the binary log as Python values, and `TableMap`, the log's description of a table before its rows. Pure.

Values are int, float, str or bytes; DECIMAL, dates and times are the text that the server writes, TIMESTAMP in UTC.
Column names come from the log: information_schema has today's names, which would be wrong for older rows.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from ackwise.stores.mysql.binlog.statements import full_name

Decoder = Callable[[bytes, int], tuple[Any, int]]
"""Decodes the bytes at a place and returns the value with the next place; the caller checks the end of the bytes."""

_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE = 1, 2, 3, 4, 5
_LONGLONG, _INT24, _DATE, _YEAR = 8, 9, 10, 13

#: TIMESTAMP, TIME and DATETIME in formats that the log does not tell apart.
_OLD_TIMES: Final = (7, 11, 12)
_VARCHAR, _BIT, _TIMESTAMP2, _DATETIME2, _TIME2, _JSON, _DECIMAL, _ENUM, _SET = 15, 16, 17, 18, 19, 245, 246, 247, 248
_BLOBS: Final = (249, 250, 251, 252)
_VAR_STRING, _STRING, _GEOMETRY = 253, 254, 255
_COMPRESSED_BLOB, _COMPRESSED_VARCHAR = 140, 141

_INTEGERS: Final = {_TINY: 1, _SHORT: 2, _INT24: 3, _LONG: 4, _LONGLONG: 8}

#: Bytes of metadata by type; those that are not here have none.
_METADATA: Final = {
    **dict.fromkeys((_FLOAT, _DOUBLE, *_BLOBS, _GEOMETRY, _JSON, _TIMESTAMP2, _DATETIME2, _TIME2, _COMPRESSED_BLOB), 1),
    **dict.fromkeys((_VARCHAR, _BIT, _DECIMAL, _ENUM, _SET, _VAR_STRING, _STRING, _COMPRESSED_VARCHAR), 2),
}

#: Bytes of a number, by its decimal digits.
_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


class Column(NamedTuple):
    """A column as the log describes it. `metadata` are two bytes, the second one 0 where the type has one."""

    name: str
    type: int
    metadata: tuple[int, int]
    unsigned: bool = False
    encoding: str | None = None
    """Python's name for its character set, or a `Bytewise`; `None` for bytes."""
    members: tuple[str, ...] = ()
    """Members of ENUM and SET."""

    @property
    def real_type(self) -> int:
        """CHAR, ENUM and SET have one type in the log, and the metadata tell them apart."""
        if self.type == _STRING and (high := self.metadata[0] | 0x30) in (_ENUM, _SET):
            return high
        return self.type


class Padded(int):
    """A number that the server writes with zeros in front: that of a ZEROFILL column, and the year 0000. So does its text."""

    def __new__(cls, number: int, digits: int) -> Padded:
        """Return `number`, which is written in `digits` characters at least."""
        made = super().__new__(cls, number)
        made.digits = digits
        return made

    digits: int

    def __str__(self) -> str:
        return f"{int(self):0{self.digits}d}"

    def __reduce__(self) -> tuple[type[Padded], tuple[int, int]]:
        return Padded, (int(self), self.digits)


class Bytewise(str):
    """A character set of one byte per character, in place of Python's name for it: its 256 characters, U+FFFE where it has none."""

    __slots__ = ()


def decoded(value: bytes, encoding: str) -> str:
    """The text of `value`. Bytes that are none in `encoding` become surrogates, which can't be encoded again by mistake."""
    if isinstance(encoding, Bytewise):
        characters: Any = encoding  # a text of 256 characters is what it takes first
        return codecs.charmap_decode(value, "surrogateescape", characters)[0]
    return value.decode(encoding, "surrogateescape")


def metadata_size(type_: int) -> int:
    """Bytes of metadata of a column of this type."""
    return _METADATA.get(type_, 0)


def is_numeric(type_: int) -> bool:
    """Return True if the log records the sign of such a column."""
    return type_ in (*_INTEGERS, _FLOAT, _DOUBLE, _DECIMAL, _YEAR)


def is_text(type_: int, *, with_geometry: bool) -> bool:
    """Return True if the log records the character set of such a column. MariaDB has one of GEOMETRY, that of bytes, and MySQL none."""
    if type_ == _GEOMETRY:
        return with_geometry
    return type_ in (_VARCHAR, _VAR_STRING, _STRING, *_BLOBS, _COMPRESSED_BLOB, _COMPRESSED_VARCHAR)


def decoder_of(column: Column) -> Decoder:
    """Return the decoder of `column`. Raise `ValueError` for an unsupported type."""
    type_, (first, second) = column.real_type, column.metadata
    if type_ in _INTEGERS:
        return _integer(_INTEGERS[type_], signed=not column.unsigned)
    match type_:
        case 4:
            return _float
        case 5:
            return lambda data, place: (_DOUBLES.unpack_from(data, place)[0], place + 8)
        case 15 | 253:
            return _string(2 if first | second << 8 > 255 else 1, column.encoding)
        case 254:
            length = second | ((first & 0x30) ^ 0x30) << 4
            return _string(2 if length > 255 else 1, column.encoding, pad=length if column.encoding is None else 0)
        case 249 | 250 | 251 | 252 | 255:
            return _string(first, column.encoding)
        case 246:
            return _decimal(first, second)
        case 247:
            return _enum(second, column.members)
        case 248:
            return _set(second, column.members)
        case 16:
            return _integer((second * 8 + first + 7) // 8, signed=False, order="big")
        case _ if type_ in _OF_TIME:
            return _OF_TIME[type_](first)
    if type_ in _OLD_TIMES:
        raise ValueError(f"column {column.name} has an old format of dates and times, which the log does not describe; ALTER TABLE … FORCE")
    what = "JSON in MySQL's form" if type_ == _JSON else f"type {type_}"
    raise ValueError(f"column {column.name} has {what}, which is not read from the log")


def _integer(size: int, *, signed: bool, order: Any = "little") -> Decoder:
    return lambda data, place: (int.from_bytes(data[place : place + size], order, signed=signed), place + size)


_FLOATS, _DOUBLES = struct.Struct("<f"), struct.Struct("<d")


def _float(data: bytes, place: int) -> tuple[float, int]:
    """The shortest number that is this FLOAT, as the server writes it, where six digits are enough for that."""
    raw = data[place : place + 4]
    (exact,) = _FLOATS.unpack(raw)
    short = (float(f"{exact:.{digits}g}") for digits in (6, 7, 8))
    return next((number for number in short if _FLOATS.pack(number) == raw), exact), place + 4


def _string(prefix: int, encoding: str | None, pad: int = 0) -> Decoder:
    """Bytes after their length; the log leaves out the zeros at the end of a BINARY, `pad` bytes long."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        start = place + prefix
        end = start + int.from_bytes(data[place:start], "little")
        value = data[start:end]
        if encoding is not None:
            return decoded(value, encoding), end
        return value.ljust(pad, b"\0"), end

    return decode


def _decimal(precision: int, scale: int) -> Decoder:
    whole, whole_rest = divmod(precision - scale, 9)
    part, part_rest = divmod(scale, 9)
    groups = [(_DIGITS[whole_rest], whole_rest), *[(4, 9)] * whole, *[(4, 9)] * part, (_DIGITS[part_rest], part_rest)]
    size = sum(length for length, _ in groups)

    def decode(data: bytes, place: int) -> tuple[str, int]:
        raw = bytearray(data[place : place + size])
        if len(raw) < size:
            raise ValueError("a row ends inside a number")
        is_negative = not raw[0] & 0x80
        raw[0] ^= 0x80
        if is_negative:
            raw = bytearray(byte ^ 0xFF for byte in raw)
        digits, at = "", 0
        for length, count in groups:
            if count:
                digits += f"{int.from_bytes(raw[at : at + length], 'big'):0{count}d}"
            at += length
        text = str(int(digits[: precision - scale] or "0")) + (f".{digits[precision - scale :]}" if scale else "")
        return ("-" if is_negative else "") + text, place + size

    return decode


def _enum(size: int, members: Sequence[str]) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        number = int.from_bytes(data[place : place + size], "little")
        if number > len(members):
            raise ValueError(f"an ENUM has the value {number} of {len(members)}")
        return members[number - 1] if number else "", place + size

    return decode


def _set(size: int, members: Sequence[str]) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        bits = int.from_bytes(data[place : place + size], "little")
        return ",".join(member for number, member in enumerate(members) if bits >> number & 1), place + size

    return decode


def _fraction(number: int, digits: int) -> str:
    """The fraction of a second, which fills whole bytes with two digits each."""
    written = (digits + 1) // 2 * 2
    if number >= 10**written:
        raise ValueError(f"a time has the fraction {number} of a second, with {digits} digits")
    return f".{number:0{written}d}"[: digits + 1] if digits else ""


def _day(year: int, month: int, day: int) -> str:
    if month > 12 or year > 9999:
        raise ValueError(f"a date has the month {month} of the year {year}")
    return f"{year:04d}-{month:02d}-{day:02d}"


def _clock(bits: int, most_hours: int) -> str:
    """Hours above six bits of minutes and six of seconds."""
    hours, minutes, seconds = bits >> 12, bits >> 6 & 63, bits & 63
    if hours > most_hours or minutes > 59 or seconds > 59:
        raise ValueError(f"a time has {hours} hours, {minutes} minutes and {seconds} seconds")
    return f"{hours:02d}:{minutes:02d}:{seconds:02d}"


def _year(_: int) -> Decoder:
    return lambda data, place: (1900 + data[place] if data[place] else Padded(0, 4), place + 1)


def _date(_: int) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        number = int.from_bytes(data[place : place + 3], "little")
        return _day(number >> 9, number >> 5 & 15, number & 31), place + 3

    return decode


def _datetime2(digits: int) -> Decoder:
    more = (digits + 1) // 2

    def decode(data: bytes, place: int) -> tuple[str, int]:
        number, end = int.from_bytes(data[place : place + 5], "big") - (1 << 39), place + 5 + more
        year, month = divmod(number >> 22, 13)
        day, clock = _day(year, month, number >> 17 & 31), _clock(number & 0x1FFFF, 23)
        return f"{day} {clock}{_fraction(int.from_bytes(data[place + 5 : end], 'big'), digits)}", end

    return decode


def _timestamp2(digits: int) -> Decoder:
    more = (digits + 1) // 2

    def decode(data: bytes, place: int) -> tuple[str, int]:
        end = place + 4 + more
        fraction = _fraction(int.from_bytes(data[place + 4 : end], "big"), digits)
        return _instant(int.from_bytes(data[place : place + 4], "big")) + fraction, end

    return decode


def _time2(digits: int) -> Decoder:
    more = (digits + 1) // 2

    def decode(data: bytes, place: int) -> tuple[str, int]:
        end = place + 3 + more
        number = int.from_bytes(data[place:end], "big") - (0x800000 << 8 * more)
        sign, number = "-" if number < 0 else "", abs(number)
        fraction, seconds = number & (1 << 8 * more) - 1, number >> 8 * more
        return f"{sign}{_clock(seconds, 838)}{_fraction(fraction, digits)}", end

    return decode


def _instant(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}" if seconds else "0000-00-00 00:00:00"


_OF_TIME: Final[dict[int, Callable[[int], Decoder]]] = {
    _YEAR: _year,
    _DATE: _date,
    _TIME2: _time2,
    _DATETIME2: _datetime2,
    _TIMESTAMP2: _timestamp2,
}

#: Kinds of optional metadata.
_SIGNS, _DEFAULT_CHARSET, _CHARSETS, _NAMES, _SET_MEMBERS, _ENUM_MEMBERS = 1, 2, 3, 4, 5, 6
_DEFAULT_MEMBER_CHARSET, _MEMBER_CHARSETS = 10, 11

_ENUM, _SET = 247, 248


def packed_integer(data: bytes, place: int) -> tuple[int, int]:
    """A length-encoded integer, and where what follows starts. Raises `ValueError`."""
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
        self.table = full_name(schema, table)
        self._body = body

    def columns(
        self,
        encodings: Mapping[int, str | None],
        texts: Sequence[str] = (),
        digits: Mapping[str, int] = {},
        *,
        with_geometry: bool = True,
    ) -> Columns:
        """The columns. `encodings` are known by the number of the collation, `texts` are columns of bytes that are text.

        `digits` are the characters that the server writes at least for the number in a column. For `with_geometry` see `is_text`.
        """
        body = self._body
        count, place = packed_integer(body, self._place)
        types, place = body[place : place + count], place + count
        length, place = packed_integer(body, place)
        metadata = list(_metadata(types, body[place : place + length]))
        described = _Described(body[place + length + (count + 7) // 8 :])
        plain = [Column("", type_, pair) for type_, pair in zip(types, metadata, strict=True)]
        return Columns(self.table, described.completed(self.table, plain, encodings, with_geometry), texts, digits)


def _padded(decoder: Decoder, digits: int | None) -> Decoder:
    """The decoder of a number that is written in `digits` characters at least."""
    if digits is None:
        return decoder

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        value, end = decoder(data, place)
        return (Padded(value, digits) if isinstance(value, int) else value.zfill(digits) if isinstance(value, str) else value), end

    return decode


class Columns:
    """The columns of a table, which make rows of bytes. Raises `ValueError` for a type that is not read."""

    def __init__(self, table: str, columns: Sequence[Column], texts: Sequence[str] = (), digits: Mapping[str, int] = {}) -> None:
        self.table = table
        self.by_name = {column.name: column for column in columns}
        self._names = [column.name for column in columns]
        decoders = [decoder_of(column._replace(encoding="utf-8") if column.name in texts else column) for column in columns]
        self._decoders = [_padded(decoder, digits.get(name)) for decoder, name in zip(decoders, self._names, strict=True)]

    def __len__(self) -> int:
        return len(self._names)

    def row(self, data: bytes, place: int) -> tuple[dict[str, Any], int]:
        """The row that starts at `place`, and where the next one does. Written the long way: it runs once per row."""
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
            if place > len(data):
                raise ValueError("the description of a table ends too early")
            self._fields[kind] = data[start:place]

    def completed(self, table: str, columns: Sequence[Column], encodings: Mapping[int, str | None], with_geometry: bool) -> list[Column]:
        """The columns with all their attributes."""
        if _NAMES not in self._fields:
            raise ValueError(f"the log does not name the columns of {table}: it was written while binlog_row_metadata was not FULL")
        names = [name.decode("utf-8") for name in _texts(self._fields[_NAMES])]
        if len(names) != len(columns):
            raise ValueError(f"the log names {len(names)} columns of {table}, which has {len(columns)}")
        kinds = [column.real_type for column in columns]
        signs = self._signs(sum(map(is_numeric, kinds)))
        are_text = [is_text(kind, with_geometry=with_geometry) for kind in kinds]
        texts = iter(self._collations(_DEFAULT_CHARSET, _CHARSETS, sum(are_text)))
        members = iter(self._collations(_DEFAULT_MEMBER_CHARSET, _MEMBER_CHARSETS, sum(kind in (_ENUM, _SET) for kind in kinds)))
        lists = {_ENUM: self._lists(_ENUM_MEMBERS, kinds.count(_ENUM)), _SET: self._lists(_SET_MEMBERS, kinds.count(_SET))}
        made = []
        for column, name, has_text in zip(columns, names, are_text, strict=True):
            of, kind = column._replace(name=name), column.real_type
            if is_numeric(kind):
                of = of._replace(unsigned=next(signs))
            elif has_text:
                of = of._replace(encoding=_encoding(encodings, next(texts), name, table))
            elif kind in (_ENUM, _SET):
                encoding = _encoding(encodings, next(members), name, table) or "latin-1"
                of = of._replace(members=tuple(decoded(each, encoding) for each in next(lists[kind])))
            made.append(of)
        return made

    def _signs(self, count: int) -> Iterator[bool]:
        data = self._fields.get(_SIGNS, b"")
        _require_count("signs", len(data), (count + 7) // 8)
        return (bool(byte >> bit & 1) for byte in data for bit in range(7, -1, -1))

    def _collations(self, default: int, each: int, count: int) -> list[int]:
        if each in self._fields:
            found = _numbers(self._fields[each])
            _require_count("character sets", len(found), count)
            return found
        if not count:
            return []
        _require_count("character sets", len(self._fields.get(default, b"")[:1]), 1)
        first, *pairs = _numbers(self._fields[default])
        others = dict(zip(pairs[::2], pairs[1::2], strict=True))
        _require_count("columns with a character set", max([count - 1, *others]), count - 1)
        return [others.get(number, first) for number in range(count)]

    def _lists(self, kind: int, count: int) -> Iterator[list[bytes]]:
        found = list(_lists(self._fields.get(kind, b"")))
        _require_count("lists of members", len(found), count)
        return iter(found)


def _require_count(what: str, said: int, needed: int) -> None:
    """Raise `ValueError`: each column after one that the server counts and we do not, or the other way round, would have another's."""
    if said != needed:
        raise ValueError(f"the description of a table has {said} {what} and not {needed}; this version of the server is not known here")


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
