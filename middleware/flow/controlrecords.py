"""Records of the control topic: operators' commands for the workers of a group, and the workers' own state. Pure.

    key    handler/bill | partition/orders/3     pause or resume; the last record counts
    value  {"version": 2, "paused": true, "dead": false, "at_ms": 1700000000000}

    key    letters/graves                        written by each worker whose dead letters go there
    value  {"version": 2}

    key    message/orders/3/17                   retry or bury one message that waits in place; the last record counts
    value  {"version": 2, "do": "bury", "timestamp": 1700000000000, "at_ms": 1700000000100}

    key    worker/4d7c0f9a1b2c3d4e               the state of one worker, every few seconds, for `ackwise status`
    value  {"version": 2, "host": "node-3", "pid": 17, "ackwise": "1.0.0", "partitions": [["orders", 3, 5, 2]], …}

The topic is compacted, so a worker that starts reads one record per key. A record without a value takes the earlier one back. `version`
and `paused` are frozen over all versions; workers skip commands that they do not know.

A command about a message has the timestamp of its record, since a topic that was recreated has another message at that offset.
`Burials` are the messages to be buried: each becomes a dead letter before its handler is called again. The state of a worker
contains nothing of a message and no text of an exception.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, get_args

from ackwise.middleware.errors import AckwiseError, ConfigurationError
from ackwise.middleware.flow.pausing import Target
from ackwise.middleware.message.disposition import Dead, Reason
from ackwise.middleware.message.message import TopicPartition
from ackwise.middleware.runs.run import Run, pick
from ackwise.middleware.usercode import class_name, shown

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
    """`key` for people: bytes as UTF-8 if they are that, otherwise in hexadecimal; anything else as it prints itself. Shortened."""
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


class Burials:
    """What one worker knows of them. Most workers report nothing; it costs one check per batch."""

    def __init__(self) -> None:
        self._timestamps: dict[MessageAt, int] = {}

    def __bool__(self) -> bool:
        return bool(self._timestamps)

    def add(self, at: MessageAt, timestamp_ms: int) -> None:
        """From now on the message at `at` is to be dead, if its record has this timestamp."""
        self._timestamps[at] = timestamp_ms

    def has(self, at: MessageAt, timestamp_ms: int) -> bool:
        """Return whether that is known already."""
        return self._timestamps.get(at) == timestamp_ms

    def discard(self, at: MessageAt) -> None:
        """It was taken back."""
        self._timestamps.pop(at, None)

    def places(self, run: Run) -> list[int]:
        """The places of the messages of `run` that are to be dead."""
        times = run.times()
        return [
            place
            for place, offset in enumerate(run.offsets)
            if self.has(MessageAt(run.place.topic, run.place.partition, offset), times[place])
        ]

    def bury(self, runs: list[Run], run: Run) -> bool:
        """Rule that those of `run` are dead letters, which fall out of it; returns whether something is left of it."""
        places = self.places(run)
        is_whole = len(places) == len(run)
        for single in pick(runs, run, places):
            single.exec_ids = None  # those of the last attempt, which was reported: no other one starts
            single.rule(Dead(Reason.BURIED, single.failure))
        return not is_whole


VERSION: Final = 2


class UnreadableControl(AckwiseError):
    """A record of a control topic can't be read."""


class ControlRecord(NamedTuple):
    """`target` is paused from now on, or is not. `at_ms` is the time of the command, epoch milliseconds."""

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


Do = Literal["retry", "bury"]

_MESSAGE_KEY: Final = b"message/"


class MessageCommand(NamedTuple):
    """What is to be done with the message at `at`; `do` is `None` where nothing is, any more."""

    at: MessageAt
    do: Do | None
    timestamp_ms: int = 0
    """Of its record: after a topic was recreated another message is at that offset."""
    at_ms: int = 0
    """Time of the command, epoch milliseconds."""


def is_command(key: bytes | None) -> bool:
    """Return whether a record with this key is about one message."""
    return key is not None and key.startswith(_MESSAGE_KEY)


def encode_command(command: MessageCommand) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = _MESSAGE_KEY + str(command.at).encode()
    if command.do is None:
        return key, None
    value = {"version": VERSION, "do": command.do, "timestamp": command.timestamp_ms, "at_ms": command.at_ms}
    return key, json.dumps(value).encode()


def decode_command(key: bytes, value: bytes | None) -> MessageCommand:
    """The command of this key and value. Raises `UnreadableControl`."""
    topic, _, rest = key.removeprefix(_MESSAGE_KEY).decode("utf-8", "replace").partition("/")
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


WORKER_VERSION: Final = 2

#: Partitions, reasons and troubles in one record.
HELD_AT_MOST: Final = 1_000
_WORKER_KEY: Final = b"worker/"
_NAME: Final = 500  # characters of a text


class PartitionInHand(NamedTuple):
    """A partition that a worker has: its messages that are in flight, and those of them that run."""

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
    expired: int = 0
    """Messages that expired since it started."""


def is_worker(key: bytes | None) -> bool:
    """Return whether this is the key of such a record."""
    return key is not None and key.startswith(_WORKER_KEY)


def worker_key(id: str) -> bytes:
    """The key of the record of the worker with this id."""
    return _WORKER_KEY + id.encode()


def encode_worker(record: WorkerRecord) -> tuple[bytes, bytes]:
    """Key and value."""
    said = record._asdict()
    return worker_key(said.pop("id")), json.dumps({"version": WORKER_VERSION, **said}).encode()


def decode_worker(key: bytes, value: bytes) -> WorkerRecord:
    """The record of this key and value. Raises `UnreadableControl` for one that Ackwise did not write."""
    try:
        said = json.loads(value)
        return WorkerRecord(
            key.removeprefix(_WORKER_KEY).decode(),
            _text(said["host"]),
            _number(said["pid"]),
            _text(said["ackwise"]),
            _text(said["client"]),
            tuple(PartitionInHand(_text(topic), *map(_number, numbers)) for topic, *numbers in said["partitions"][:HELD_AT_MOST]),
            tuple((_text(why), _number(messages)) for why, messages in said["waiting"][:HELD_AT_MOST]),
            tuple(map(_text, said["paused"][:HELD_AT_MOST])),
            tuple(map(_text, said["troubles"][:HELD_AT_MOST])),
            _number(said["expired"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnreadableControl("the record of a worker is not what this Ackwise writes there") from None


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError
    return given[:_NAME]
