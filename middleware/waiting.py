"""Messages that wait in place for their next attempt, as people see them and name them. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.usercode import class_name, shown

__all__ = ["MessageAt", "WaitingAnswer", "WaitingMessage", "key_text", "message_at"]

WaitingAnswer = Literal["accepted", "running", "unknown"]
"""`accepted`: it waits in place in this worker. `running`: its handler has it now. `unknown`: it does neither here."""

_MESSAGE: Final = re.compile(r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>\d{1,9})/(?P<offset>\d{1,18})", re.ASCII)

#: Characters of a key that are shown.
_KEY_LIMIT: Final = 60


class MessageAt(NamedTuple):
    """Where a message was read."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that failed and waits in memory for its next attempt, under `order="key"` or `"partition"`. All times are seconds."""

    topic: str
    partition: int
    offset: int
    handler: str
    key: str | None
    """What it is in order by, as text and shortened: the record's key, or what `order_by` returned; `None` without one."""
    attempts: int
    """How many it has had in place."""
    age: float
    """Since the timestamp of its record."""
    due_in: float
    """Until its next attempt; 0 if it is due, and something stands in front of it."""
    depth: int
    """Messages that this worker has fetched and that wait behind it: those of its key, or under `"partition"` of its partition."""
    error: str | None
    """Class name of what its last attempt raised; `None` where another worker made that attempt."""
    at: str | None
    """Where that was raised, as `file:line`, if it is known."""
    is_buried: bool
    """Whether it is to be a dead letter before its handler is called again."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


def message_at(text: str, topics: Collection[str]) -> MessageAt:
    """The message that `text`, such as `orders/3/17`, names in one of `topics`. Raises `ConfigurationError`."""
    found = _MESSAGE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ConfigurationError(f"{text!r} names no message; write TOPIC/PARTITION/OFFSET, such as orders/3/17")
    if found["topic"] not in topics:
        near = difflib.get_close_matches(found["topic"], topics, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"it reads {', '.join(sorted(topics))}"
        raise ConfigurationError(f"{text!r} is in topic {found['topic']!r}, which this app does not read; {advice}")
    return MessageAt(found["topic"], int(found["partition"]), int(found["offset"]))


def key_text(key: object) -> str | None:
    """`key` for people: bytes as UTF-8 if they are that, else in hexadecimal; anything else as it prints itself. Shortened."""
    match key:
        case None:
            return None
        case bytes():
            try:
                text = key.decode()
            except UnicodeDecodeError:
                text = "0x" + key[:_KEY_LIMIT].hex()
        case str():
            text = key
        case _:
            text = shown(key, repr, f"<{class_name(key)}>")
    text = "".join(each if each.isprintable() else "�" for each in text[: _KEY_LIMIT + 1])
    return text if len(text) <= _KEY_LIMIT else text[: _KEY_LIMIT - 1] + "…"
