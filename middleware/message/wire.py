"""Wire format: the headers by which a copy says where it comes from. Pure; the table of headers is in `docs/wire.md`.

Our headers are one block at the end of the header list that starts with `ackwise-version`. What stands before the
last such header is the producer's, whatever it is called: a handler that forwards headers can't poison anybody.

Version, group and handler are frozen: every version has them, under these names and within these limits. So a record
of another group is told from one of ours in any version.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ackwise.middleware.errors import AckwiseError
from ackwise.middleware.message.disposition import Failure
from ackwise.middleware.message.message import Delivery, Headers, Origin

#: The version that is written, and the only one that is read.
VERSION: Final = 2

#: Bytes that the topics of a group allow above their sources: our headers, at their largest, fit in.
BUDGET: Final = 128 * 1024

#: Bytes of a handler's name. What is read is held to its limit, or a dead letter that repeats it could never be published.
HANDLER_LIMIT: Final = 1000
_TOPIC_LIMIT, _REPLAY_ID_LIMIT, _DIGITS = 249, 256, 20

_VERSION, _GROUP, _HANDLER, _DUE = "ackwise-version", "ackwise-group", "ackwise-handler", "ackwise-due"

#: Names the topic that a message is sent to when it is due.
SEND_TOPIC: Final = "ackwise-send-topic"

_COORDINATES: Final = ("ackwise-origin-topic", "ackwise-origin-partition", "ackwise-origin-offset", "ackwise-origin-timestamp")

#: Characters of a reason that a copy carries: a handler may give any text as the reason of `batch.dead`.
_REASON_LIMIT = 1000

#: Bytes of names of headers that a dead letter spells out; the rest stays at the origin.
_NAMES_LIMIT = 16_000

#: What stands for a byte of a name that is no UTF-8.
_SURROGATES: Final = re.compile("[\udc80-\udcff]")

#: Bytes of a key that a dead letter keeps when its key is cut.
_KEY_LIMIT = 256


class ForeignCopy(AckwiseError):
    """A record on a retry topic that this group did not write."""


class OtherWire(AckwiseError):
    """A copy of this group in another version of the format; it is held until a worker comes that reads it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A record to publish. Without `until` it goes to `partition`, folded into the topic's own if that has fewer."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    until: int | None = None
    """It waits in a delay topic until then, epoch milliseconds: it goes to a rung for what is left, whatever `partition` is."""
    is_send: bool = False
    """Whether it waits to be sent, and not to be consumed again."""


class _HeaderBlock(NamedTuple):
    """Where our headers start, and what they say. What is missing raises `KeyError`, what is out of its limit `ValueError`."""

    start: int
    fields: dict[str, bytes]

    def text(self, name: str, limit: int) -> str:
        return self._within(name, limit).decode()

    def number(self, name: str, lowest: int = 0, highest: int = 2**63 - 1) -> int:
        number = int(self._within(name, _DIGITS))
        if not lowest <= number <= highest:
            raise ValueError(f"{name} is {number}, which is not from {lowest} to {highest}")
        return number

    def replay_id(self) -> bytes | None:
        return self._within("ackwise-replay-id", _REPLAY_ID_LIMIT) if "ackwise-replay-id" in self.fields else None

    def _within(self, name: str, limit: int) -> bytes:
        value = self.fields[name]
        if len(value) > limit:
            raise ValueError(f"{name} has {len(value)} bytes, and {limit} are allowed")
        return value


def _block(headers: Headers) -> _HeaderBlock:
    start = next((index for index in range(len(headers) - 1, -1, -1) if headers[index][0] == _VERSION), None)
    if start is None:
        raise ForeignCopy("it has no ackwise-version header")
    return _HeaderBlock(start, {name: value for name, value in headers[start:] if value is not None})


def _block_of(group: str, headers: Headers) -> _HeaderBlock:
    """The block of a copy that `group` wrote. Whose it is comes first: another group's version is nothing to wait for."""
    block = _block(headers)
    if (written_by := block.fields.get(_GROUP)) != group.encode():
        raise ForeignCopy("it names no group" if written_by is None else f"it belongs to group {_shown(written_by)}")
    try:
        version = int(block.fields[_VERSION])
    except (KeyError, ValueError):
        raise ForeignCopy("its ackwise-version header is not a number") from None
    if version < 1:
        raise ForeignCopy(f"its ackwise-version header is {version}, and the first version is 1")
    if version != VERSION:
        raise OtherWire(
            f"it is written in version {version} of the wire format, and this worker reads version {VERSION} alone; "
            "start a worker of the Ackwise that wrote it"
        )
    return block


def _shown(name: bytes) -> str:
    return repr(name[:_TOPIC_LIMIT].decode("utf-8", "backslashreplace"))


def parse_copy(copy: Delivery, group: str) -> Delivery:
    """`copy`, read from the retry topic of `group`, with its origin, attempt and handler and the producer's headers.

    Raises `ForeignCopy` for a record that this group did not write and `OtherWire` for one of another version.
    """
    return _read(copy, _block_of(group, copy.headers))


def parse_letter(letter: Delivery, group: str) -> tuple[Delivery, dict[str, str]]:
    """`letter`, read from a dead-letter topic of `group`, as `parse_copy` reads a copy; and our headers as texts, by their names.

    Raises `ForeignCopy` for a record that this group did not write and `OtherWire` for one of another version.
    """
    block = _block_of(group, letter.headers)
    fields = {name: value.decode("utf-8", "backslashreplace") for name, value in block.fields.items()}
    return _read(letter, block), fields


def _read(copy: Delivery, block: _HeaderBlock) -> Delivery:
    """Raises `ForeignCopy` for headers that can't be read."""
    try:
        replay_id = block.replay_id()
        return copy._replace(
            headers=copy.headers[: block.start],
            origin=Origin(
                block.text("ackwise-origin-topic", _TOPIC_LIMIT),
                block.number("ackwise-origin-partition", highest=2**31 - 1),
                block.number("ackwise-origin-offset"),
                block.number("ackwise-origin-timestamp", lowest=-(2**63)),  # a producer may set any, such as one before 1970
            ),
            attempt=block.number("ackwise-attempt", lowest=1, highest=2**31 - 1),
            first_seen_ms=block.number("ackwise-first-seen"),
            handler=block.text(_HANDLER, HANDLER_LIMIT),
            replay_id=replay_id,
        )
    except (KeyError, ValueError) as error:
        raise ForeignCopy(f"its Ackwise headers can't be read ({type(error).__name__}: {error})") from None


def due_ms(headers: Headers, group: str) -> int:
    """Return when a copy on a delay topic of `group` is due, epoch milliseconds. Raise `ForeignCopy` or `OtherWire`."""
    return _due_of(_block_of(group, headers))


def _due_of(block: _HeaderBlock) -> int:
    try:
        return block.number(_DUE)
    except (KeyError, ValueError) as error:
        raise ForeignCopy(f"its due time can't be read ({type(error).__name__}: {error})") from None


def reason_of(headers: Headers, group: str) -> str:
    """Why `group` sent this copy, in the words of its header; empty without one. Raises `ForeignCopy` or `OtherWire`."""
    return _block_of(group, headers).fields.get("ackwise-reason", b"").decode("utf-8", "replace")


class Waiting(NamedTuple):
    """What a copy that waits in a delay topic says of itself."""

    due: int
    """Epoch milliseconds."""
    key: bytes
    """By which it is cancelled: `topic/partition/offset/timestamp/replay id/handler` of the message, the replay id in hex. A record with
    equal coordinates in a topic that was recreated, a replay, and another handler of the same record are not meant."""
    is_send: bool
    """It is a message that is to be sent, and no copy that is to be consumed again."""


def waiting_copy(headers: Headers, group: str) -> Waiting:
    """Return the headers of a record of a delay topic of `group`. Raise `ForeignCopy` or `OtherWire`."""
    block = _block_of(group, headers)
    fields, parts = block.fields, [block.fields.get(name, b"") for name in _COORDINATES]
    key = b"/".join((*parts, fields.get("ackwise-replay-id", b"").hex().encode(), fields.get(_HANDLER, b"")))
    return Waiting(_due_of(block), key, SEND_TOPIC in fields)


def with_due(headers: Headers, due: int) -> Headers:
    """`headers` of a copy with another due time, epoch milliseconds."""
    start = _block(headers).start
    return (*headers[:start], *((name, b"%d" % due if name == _DUE else value) for name, value in headers[start:]))


def retry_copy(
    delivery: Delivery,
    *,
    topic: str,
    partition: int,
    group: str,
    handler: str,
    due: int,
    now_ms: int,
    reason: str,
    charged: bool = True,
    waits: bool = False,
) -> Copy:
    """The copy that brings `delivery` back at `due` (epoch ms) with the next attempt; unless it is `charged`, with the same one.

    If it `waits`, `topic` is a delay topic.
    """
    headers = _ours(delivery, group, handler, attempt=delivery.attempt + charged, now_ms=now_ms, reason=reason)
    until = due if waits else None
    return Copy(topic, partition, delivery.key, delivery.value, (*delivery.headers, *headers, (_DUE, b"%d" % due)), until)


def dead_letter(
    delivery: Delivery,
    *,
    topic: str,
    partition: int,
    group: str,
    handler: str,
    now_ms: int,
    reason: str,
    failure: Failure | None,
    in_place: int = 0,
) -> Copy:
    """The dead letter of `delivery`, which was suspended `in_place` so often: key, value and headers whole, then ours."""
    headers = _ours(delivery, group, handler, attempt=delivery.attempt + in_place, now_ms=now_ms, reason=reason)
    theirs = delivery.headers
    if has_raw_names(theirs):
        theirs, names = _spelled(theirs)
        headers += (("ackwise-header-names", names),)
    if failure is not None:
        headers += (
            ("ackwise-error-class", _encode(failure.error)),
            ("ackwise-error-message", _encode(failure.message)),
            ("ackwise-error-traceback", _encode(failure.traceback)),
        )
    return Copy(topic, partition, delivery.key, delivery.value, (*theirs, *headers))


def has_raw_names(headers: Headers) -> bool:
    """Return whether the name of a header is no UTF-8: its other bytes are lone surrogates then."""
    return any(not name.isascii() and _SURROGATES.search(name) is not None for name, _ in headers)


def _spelled(headers: Headers) -> tuple[Headers, bytes]:
    """`headers` with `?` for each byte of a name that is no UTF-8, and those names as they were: `place:hex`, with spaces between."""
    raw = {place: _bytes_of(name) for place, (name, _) in enumerate(headers) if _SURROGATES.search(name)}
    spelled = tuple((_SURROGATES.sub("?", name), value) for name, value in headers)
    names = b" ".join(b"%d:%s" % (place, name.hex().encode()) for place, name in raw.items())
    return spelled, names if len(names) <= _NAMES_LIMIT else names[:_NAMES_LIMIT] + b" ..."


def shrink(letter: Copy) -> Copy | None:
    """`letter` with one thing less, which it names; `None` if nothing is left to leave out.

    First the value goes (it stays at the origin), then the producer's headers, then the key is cut to its first
    256 bytes and its hash (blake2b-128, hex) is added.
    """
    start = _block(letter.headers).start
    theirs, ours = letter.headers[:start], letter.headers[start:]
    if letter.value:
        return replace(letter, value=None, headers=(*theirs, *_dropped(ours, b"value")))
    if theirs:
        return replace(letter, headers=_dropped(ours, b"headers"))
    if letter.key is not None and len(letter.key) > _KEY_LIMIT:
        digest = hashlib.blake2b(letter.key, digest_size=16).hexdigest().encode()
        return replace(letter, key=letter.key[:_KEY_LIMIT], headers=(*_dropped(ours, b"key"), ("ackwise-key-hash", digest)))
    return None


def _bytes_of(name: str) -> bytes:
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte; nothing that was read has one
        return name.encode("utf-8", "surrogatepass")


def _dropped(ours: Headers, what: bytes) -> Headers:
    before = [value for name, value in ours if name == "ackwise-dropped" and value]
    return (*(header for header in ours if header[0] != "ackwise-dropped"), ("ackwise-dropped", b" ".join([*before, what])))


def _ours(delivery: Delivery, group: str, handler: str, *, attempt: int, now_ms: int, reason: str) -> Headers:
    origin = delivery.origin
    fields: Headers = (
        (_VERSION, b"%d" % VERSION),
        (_GROUP, group.encode()),
        (_HANDLER, handler.encode()),
        ("ackwise-origin-topic", origin.topic.encode()),
        ("ackwise-origin-partition", b"%d" % origin.partition),
        ("ackwise-origin-offset", b"%d" % origin.offset),
        ("ackwise-origin-timestamp", b"%d" % origin.timestamp_ms),
        ("ackwise-attempt", b"%d" % attempt),
        ("ackwise-first-seen", b"%d" % (now_ms if delivery.first_seen_ms is None else delivery.first_seen_ms)),
        ("ackwise-reason", _encode(reason[:_REASON_LIMIT])),
    )
    return fields if delivery.replay_id is None else (*fields, ("ackwise-replay-id", delivery.replay_id))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
