"""Record of the control topic in which a worker says how it is, every few seconds, for `ackwise status`. Pure.

    key    worker/4d7c0f9a1b2c3d4e
    value  {"version": 1, "host": "node-3", "pid": 17, "ackwise": "1.0.0", "partitions": [["orders", 3, 5, 2]], …}

A worker that ends takes its record back: one without a value. Nothing of a message is in it, and no text of an exception.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from ackwise.middleware.controlrecord import UnreadableControl

__all__ = ["HELD_AT_MOST", "PartitionInHand", "WorkerRecord", "decode_worker", "encode_worker", "is_worker", "worker_key"]

VERSION: Final = 1

#: Partitions, reasons and troubles in one record.
HELD_AT_MOST: Final = 1_000
_PREFIX: Final = b"worker/"
_NAME: Final = 500  # characters of a text


class PartitionInHand(NamedTuple):
    """A partition that a worker has: its messages that are in hand, and those of them that run."""

    topic: str
    partition: int
    in_hand: int
    running: int


class WorkerRecord(NamedTuple):
    """What a worker says of itself."""

    id: str
    """Another one each time that it starts."""
    host: str
    pid: int
    ackwise: str
    """The version that it runs."""
    client: str
    """Its `client_id`."""
    partitions: tuple[PartitionInHand, ...] = ()
    waiting: tuple[tuple[str, int], ...] = ()
    """Messages that are held, by the reason."""
    paused: tuple[str, ...] = ()
    """Handlers and partitions, each with who said so."""
    troubles: tuple[str, ...] = ()
    """What keeps it from its work, a sentence each."""


def is_worker(key: bytes | None) -> bool:
    """Whether this is the key of such a record."""
    return key is not None and key.startswith(_PREFIX)


def worker_key(id: str) -> bytes:
    """The key of the record of the worker with this id."""
    return _PREFIX + id.encode()


def encode_worker(record: WorkerRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    said = record._asdict()
    return worker_key(said.pop("id")), json.dumps({"version": VERSION, **said}).encode()


def decode_worker(key: bytes, value: bytes) -> WorkerRecord:
    """The record of this key and value. Raises `UnreadableControl` for one that Ackwise did not write."""
    try:
        said = json.loads(value)
        return WorkerRecord(
            key.removeprefix(_PREFIX).decode(),
            _text(said["host"]),
            _number(said["pid"]),
            _text(said["ackwise"]),
            _text(said["client"]),
            tuple(PartitionInHand(_text(topic), *map(_number, numbers)) for topic, *numbers in said["partitions"][:HELD_AT_MOST]),
            tuple((_text(why), _number(messages)) for why, messages in said["waiting"][:HELD_AT_MOST]),
            tuple(map(_text, said["paused"][:HELD_AT_MOST])),
            tuple(map(_text, said["troubles"][:HELD_AT_MOST])),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnreadableControl("the record of a worker is not what this Ackwise writes there") from None


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given[:_NAME]


def _number(given: Any) -> int:
    if type(given) is not int:
        raise TypeError
    return given
