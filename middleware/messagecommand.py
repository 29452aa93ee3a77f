"""Command about one message that waits in place, as a record of the control topic. The last one about a message counts. Pure.

    key    message/orders/3/17
    value  {"version": 2, "do": "bury", "timestamp": 1700000000000, "at_ms": 1700000000100}

A record without a value takes the command back. Workers that know no such command pass over the record.
"""

from __future__ import annotations

import json
from typing import Final, Literal, NamedTuple, get_args

from ackwise.middleware.controlrecord import VERSION, UnreadableControl
from ackwise.middleware.waiting import MessageAt

__all__ = ["Do", "MessageCommand", "decode_command", "encode_command", "is_command"]

Do = Literal["retry", "bury"]

_PREFIX: Final = b"message/"


class MessageCommand(NamedTuple):
    """What is to be done with the message at `at`; `do` is `None` where nothing is, any more."""

    at: MessageAt
    do: Do | None
    timestamp_ms: int = 0
    """Of its record: after a topic was made anew another message is at that offset."""
    at_ms: int = 0
    """When somebody said so, epoch milliseconds."""


def is_command(key: bytes | None) -> bool:
    """Whether a record with this key is about one message."""
    return key is not None and key.startswith(_PREFIX)


def encode_command(command: MessageCommand) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = _PREFIX + str(command.at).encode()
    if command.do is None:
        return key, None
    value = {"version": VERSION, "do": command.do, "timestamp": command.timestamp_ms, "at_ms": command.at_ms}
    return key, json.dumps(value).encode()


def decode_command(key: bytes, value: bytes | None) -> MessageCommand:
    """The command of this key and value. Raises `UnreadableControl`."""
    topic, _, rest = key.removeprefix(_PREFIX).decode("utf-8", "replace").partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and all(each.isascii() and each.isdigit() and len(each) < 20 for each in (partition, offset))):
        raise UnreadableControl("a control record names no message")
    at = MessageAt(topic, int(partition), int(offset))
    if value is None:
        return MessageCommand(at, None)
    try:
        said = json.loads(value)
        if not isinstance(said, dict) or said.get("do") not in get_args(Do):
            raise ValueError
        return MessageCommand(at, said["do"], _number(said.get("timestamp")), _number(said.get("at_ms")))
    except (ValueError, RecursionError):
        raise UnreadableControl(f"the control record of {at} does not say what is to be done") from None


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("no number")
    return value
