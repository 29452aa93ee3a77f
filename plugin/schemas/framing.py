"""Framing: what a serializer for a Schema Registry writes before the payload. Pure.

    0x00, schema id (4 bytes, big-endian), payload
    0x00, schema id, message indexes (zigzag varints: their number, then each; a single 0 stands for [0]), payload    Protobuf

As in Confluent's documentation, "Wire format". An id in a header, which newer serializers can write, is not known here.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

__all__ = ["Framed", "NotFramed", "framed", "indexed"]

_HEAD: Final = struct.Struct(">bI")


class NotFramed(ValueError):
    """Bytes that no serializer for a Schema Registry wrote. Nothing of them is in the text."""


class Framed(NamedTuple):
    """A payload, and the id of the schema that it was written with."""

    schema_id: int
    payload: memoryview


def framed(raw: bytes) -> Framed:
    """Take the frame off. Raises `NotFramed`."""
    if len(raw) < _HEAD.size:
        raise NotFramed(f"{len(raw)} bytes are too few for a magic byte and a schema id")
    magic, schema_id = _HEAD.unpack_from(raw)
    if magic != 0:
        raise NotFramed("the first byte is not the magic byte 0 of a Schema Registry's serializer")
    return Framed(schema_id, memoryview(raw)[_HEAD.size :])


def indexed(payload: memoryview) -> tuple[tuple[int, ...], memoryview]:
    """The message indexes before a Protobuf payload, and what is behind them. Raises `NotFramed`."""
    number, rest = _zigzag(payload)
    if number == 0:
        return (0,), rest
    if number < 0 or number > len(rest):  # each takes a byte at least
        raise NotFramed("the message indexes end before the value does")
    indexes = []
    for _ in range(number):
        index, rest = _zigzag(rest)
        indexes.append(index)
    return tuple(indexes), rest


def _zigzag(data: memoryview) -> tuple[int, memoryview]:
    value = 0
    for place, byte in enumerate(data[:5]):  # 32 bits are in five bytes at most
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), data[place + 1 :]
    raise NotFramed("the message indexes end before the value does")
