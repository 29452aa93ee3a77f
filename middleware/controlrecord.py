"""Record of the control topic: the last word about one handler or one partition, for every worker of a group. Pure.

    key    handler/bill | partition/orders/3
    value  {"version": 2, "paused": true, "dead": false, "at_ms": 1700000000000}

    key    letters/graves
    value  {"version": 2}, by each worker whose dead letters go there: after another deployment nothing else names the topic

The topic is compacted, so that a worker which starts reads one record for each of them. `version`, `paused` are frozen over all versions.
"""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.message import TopicPartition
from ackwise.middleware.pausing import Target

__all__ = ["VERSION", "ControlRecord", "UnreadableControl", "decode", "encode", "encode_letters", "letters_topic"]

VERSION: Final = 2


class UnreadableControl(AckwiseError):
    """A record of a control topic can't be read."""


class ControlRecord(NamedTuple):
    """`target` is paused from now on, or is not. `at_ms` is when somebody said so, epoch milliseconds."""

    target: Target
    paused: bool
    dead: bool = False
    """It is resumed, and the dead letters that a breaker withholds are let go."""
    at_ms: int = 0


def encode(record: ControlRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    handler, partition = record.target
    key = f"handler/{handler}" if partition is None else f"partition/{partition.topic}/{partition.partition}"
    value = {"version": VERSION, "paused": record.paused, "dead": record.dead, "at_ms": record.at_ms}
    return key.encode(), json.dumps(value).encode()


def decode(key: bytes | None, value: bytes | None) -> ControlRecord:
    """The record of this key and value; one without a value says that nothing is paused. Raises `UnreadableControl`."""
    target = _target(key)
    if value is None:
        return ControlRecord(target, paused=False)
    try:
        said = json.loads(value)
        if not isinstance(said, dict) or not isinstance(said.get("paused"), bool):
            raise ValueError
        at_ms = said.get("at_ms", 0)
        return ControlRecord(target, said["paused"], said.get("dead") is True, at_ms if isinstance(at_ms, int) else 0)
    except (ValueError, RecursionError):
        raise UnreadableControl(f"the control record of {target} does not say whether it is paused") from None


_LETTERS: Final = b"letters/"


def encode_letters(topic: str) -> tuple[bytes, bytes]:
    """Key and value by which a group remembers a topic of its dead letters."""
    return _LETTERS + topic.encode(), json.dumps({"version": VERSION}).encode()


def letters_topic(key: bytes | None) -> str | None:
    """The topic that such a key names; `None` for any other key."""
    return key.removeprefix(_LETTERS).decode("utf-8", "replace") if key is not None and key.startswith(_LETTERS) else None


def _target(key: bytes | None) -> Target:
    kind, _, name = (key or b"").decode("utf-8", "replace").partition("/")
    if kind == "handler" and name:
        return Target(name)
    topic, _, number = name.rpartition("/")
    if kind == "partition" and topic and number.isascii() and number.isdigit():
        return Target(None, TopicPartition(topic, int(number)))
    raise UnreadableControl("a control record names neither a handler nor a partition")
