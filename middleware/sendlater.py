"""Messages that are sent later: records on the delay topic of a group that say which topic they are for, and when. Pure.

Key and value are the message's own. Behind its headers stands a block like that of a copy: version, group and handler, which are frozen
over all versions, then when it is due and where it goes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Headers
from ackwise.middleware.outgoing import MESSAGE_ID, Outgoing
from ackwise.middleware.retry import MAX_DELAY
from ackwise.middleware.wire import SEND_TOPIC, VERSION, ForeignCopy, due_ms

__all__ = ["HANDLER", "due_of_send", "refuse_too_late", "send_later", "to_send"]

#: Stands where a copy names its handler: nobody's handler gets such a record.
HANDLER: Final = "-"

_VERSION, _GROUP, _HANDLER, _DUE = "ackwise-version", "ackwise-group", "ackwise-handler", "ackwise-due"
_PARTITION: Final = "ackwise-send-partition"


def refuse_too_late(topic: str, due: int, now_ms: int) -> None:
    """Raise `ConfigurationError` if `due` is more than three days from now: the relay would cut it, and send too early."""
    if due > now_ms + round(MAX_DELAY * 1000):
        days = (due - now_ms) / 86_400_000
        raise ConfigurationError(f"a message to {topic!r} is to be sent in {days:.1f} days; {MAX_DELAY / 86400:g} days are the most")


def send_later(message: Outgoing, due: int, *, now_ms: int, group: str, topic: str, clock_skew: float) -> Outgoing:
    """What is sent now to the delay topic of `group` so that `message` is sent at `due`; times are epoch milliseconds.

    `clock_skew` (seconds) is added, so that it is never early between clocks that differ by less. What is due already is sent as it is.
    """
    if due <= now_ms:
        return message
    block: Headers = (
        (_VERSION, b"%d" % VERSION),
        (_GROUP, group.encode()),
        (_HANDLER, HANDLER.encode()),
        (_DUE, b"%d" % (due + round(clock_skew * 1000))),
        (SEND_TOPIC, message.topic.encode()),
        *(() if message.partition is None else ((_PARTITION, b"%d" % message.partition),)),
    )
    return replace(message, topic=topic, partition=None, headers=(*message.headers, *block))


def due_of_send(headers: Headers) -> int | None:
    """When a message is due that waits to be sent, epoch milliseconds; `None` for any other message. Its sender chooses a rung by it."""
    if not any(name == SEND_TOPIC for name, _ in headers):
        return None
    found = next((value for name, value in reversed(headers) if name == _DUE), None)
    return int(found) if found is not None and found.isdigit() else None


def to_send(key: bytes | None, value: bytes | None, headers: Headers, group: str) -> Outgoing:
    """The message of such a record of `group`. Raises `ForeignCopy` or `OtherWire` if it is none."""
    due_ms(headers, group)
    start = max(place for place, (name, _) in enumerate(headers) if name == _VERSION)
    fields = {name: found for name, found in headers[start:] if found is not None}
    try:
        topic = fields[SEND_TOPIC].decode()
        partition = int(fields[_PARTITION]) if _PARTITION in fields else None
        message_id = fields[MESSAGE_ID].decode("utf-8", "surrogateescape")
        return Outgoing(topic, value, key, headers[:start], partition, message_id)
    except (KeyError, ValueError, ConfigurationError) as error:
        raise ForeignCopy(f"where it goes can't be read ({type(error).__name__}: {error})") from None
