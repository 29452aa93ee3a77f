"""Values of a column as Python has them, of the bytes of a row in the binary log. Pure.

int, float, str and bytes for those types; DECIMAL and what is of time is the text that the server writes, TIMESTAMP in UTC.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

Decoder = Callable[[bytes, int], tuple[Any, int]]
"""Makes a value of the bytes at a place, and says where what follows begins; whoever calls it sees to the end of the bytes."""

_TINY, _SHORT, _LONG, _FLOAT, _DOUBLE, _TIMESTAMP = 1, 2, 3, 4, 5, 7
_LONGLONG, _INT24, _DATE, _TIME, _DATETIME, _YEAR = 8, 9, 10, 11, 12, 13
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

#: Bytes of a number of so many decimal digits.
_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


class Column(NamedTuple):
    """A column as the log describes it. `metadata` are two bytes, the second one 0 where the type has one."""

    name: str
    type: int
    metadata: tuple[int, int]
    unsigned: bool = False
    encoding: str | None = None
    """Python's name for its character set; `None` for bytes."""
    members: tuple[str, ...] = ()
    """Of ENUM and SET."""

    @property
    def real_type(self) -> int:
        """CHAR, ENUM and SET have one type in the log, and the metadata tell them apart."""
        if self.type == _STRING and (high := self.metadata[0] | 0x30) in (_ENUM, _SET):
            return high
        return self.type


def metadata_size(type_: int) -> int:
    """Bytes of metadata of a column of this type."""
    return _METADATA.get(type_, 0)


def is_numeric(type_: int) -> bool:
    """Whether the log says of such a column that it has a sign or not."""
    return type_ in (*_INTEGERS, _FLOAT, _DOUBLE, _DECIMAL, _YEAR)


def is_text(type_: int) -> bool:
    """Whether the log says which character set such a column has."""
    return type_ in (_VARCHAR, _VAR_STRING, _STRING, *_BLOBS, _COMPRESSED_BLOB, _COMPRESSED_VARCHAR)


def decoder_of(column: Column) -> Decoder:
    """What decodes `column`. Raises `ValueError` for a type that is not read."""
    type_, (first, second) = column.real_type, column.metadata
    if type_ in _INTEGERS:
        return _integer(_INTEGERS[type_], signed=not column.unsigned)
    match type_:
        case 4:
            return _struct("<f", 4)
        case 5:
            return _struct("<d", 8)
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
    what = "JSON in MySQL's form" if type_ == _JSON else f"type {type_}"
    raise ValueError(f"column {column.name} has {what}, which is not read from the log")


def _integer(size: int, *, signed: bool, order: Any = "little") -> Decoder:
    return lambda data, place: (int.from_bytes(data[place : place + size], order, signed=signed), place + size)


def _struct(layout: str, size: int) -> Decoder:
    one = struct.Struct(layout)
    return lambda data, place: (one.unpack_from(data, place)[0], place + size)


def _string(prefix: int, encoding: str | None, pad: int = 0) -> Decoder:
    """Bytes after their length; the log leaves out the zeros at the end of a BINARY, `pad` bytes long."""

    def decode(data: bytes, place: int) -> tuple[Any, int]:
        start = place + prefix
        end = start + int.from_bytes(data[place:start], "little")
        value = data[start:end]
        if encoding is not None:
            return value.decode(encoding, "surrogateescape"), end
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
    return f".{number:0{(digits + 1) // 2 * 2}d}"[: digits + 1] if digits else ""


def _year(_: int) -> Decoder:
    return lambda data, place: (1900 + data[place] if data[place] else 0, place + 1)


def _date(_: int) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        number = int.from_bytes(data[place : place + 3], "little")
        return f"{number >> 9:04d}-{number >> 5 & 15:02d}-{number & 31:02d}", place + 3

    return decode


def _datetime2(digits: int) -> Decoder:
    more = (digits + 1) // 2

    def decode(data: bytes, place: int) -> tuple[str, int]:
        number, end = int.from_bytes(data[place : place + 5], "big") - (1 << 39), place + 5 + more
        year, month = divmod(number >> 22, 13)
        day = f"{year:04d}-{month:02d}-{number >> 17 & 31:02d}"
        clock = f"{number >> 12 & 31:02d}:{number >> 6 & 63:02d}:{number & 63:02d}"
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
        clock = f"{seconds >> 12 & 0x3FF:02d}:{seconds >> 6 & 63:02d}:{seconds & 63:02d}"
        return f"{sign}{clock}{_fraction(fraction, digits)}", end

    return decode


def _timestamp(_: int) -> Decoder:
    return lambda data, place: (_instant(int.from_bytes(data[place : place + 4], "little")), place + 4)


def _datetime(_: int) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        text = f"{int.from_bytes(data[place : place + 8], 'little'):014d}"
        return f"{text[:4]}-{text[4:6]}-{text[6:8]} {text[8:10]}:{text[10:12]}:{text[12:]}", place + 8

    return decode


def _time(_: int) -> Decoder:
    def decode(data: bytes, place: int) -> tuple[str, int]:
        number = int.from_bytes(data[place : place + 3], "little", signed=True)
        text = f"{abs(number):06d}"
        return f"{'-' if number < 0 else ''}{text[:-4]}:{text[-4:-2]}:{text[-2:]}", place + 3

    return decode


def _instant(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}" if seconds else "0000-00-00 00:00:00"


_OF_TIME: Final[dict[int, Callable[[int], Decoder]]] = {
    _YEAR: _year,
    _DATE: _date,
    _TIME: _time,
    _DATETIME: _datetime,
    _TIMESTAMP: _timestamp,
    _TIME2: _time2,
    _DATETIME2: _datetime2,
    _TIMESTAMP2: _timestamp2,
}
