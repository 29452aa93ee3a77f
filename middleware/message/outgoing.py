"""`Outgoing`: a message on its way to Kafka, with its id for deduplication; and the protocol of a publisher of copies. Pure.

The headers of the trace context are separate from the sender's. The id of a published message is made of its content and must be
the same whenever the handler runs; the trace context differs each time.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ackwise.middleware.errors import ConfigurationError, PublishRefused, PublishUnavailable
from ackwise.middleware.message.message import Headers, Message
from ackwise.middleware.message.wire import Copy

_current: ContextVar[Callable[[], Headers] | None] = ContextVar("ackwise_trace_context", default=None)


def trace_context() -> Headers:
    """The headers for a message that is made here; none where nothing is traced."""
    read = _current.get()
    return () if read is None else read()


@contextmanager
def carrying(read: Callable[[], Headers]) -> Iterator[None]:
    """While the block runs, messages that are made in this task or in those that it starts carry what `read` returns then."""
    token = _current.set(read)
    try:
        yield
    finally:
        _current.reset(token)


#: The header with the id of a message. A producer sets it on each send, and on each repetition of a send to the same text.
MESSAGE_ID: Final = "message-id"

#: `SendFailed.error` of a message whose topic is not there, as brokers said that answered.
MISSING: Final = "UnknownTopicOrPartitionError"

#: Starts the names of headers that say what a copy or a delayed message is: one that a sender sets would make its message look like that.
_OURS: Final = "ackwise-"

#: Bytes of a message id as UTF-8: it is a column of the outbox, and part of what a consumer remembers.
_LONGEST_ID: Final = 200

#: Kafka counts partitions with 32 bits, and so does an outbox.
_HIGHEST_PARTITION: Final = 2**31 - 1

#: Kafka: `Topic.MAX_NAME_LENGTH` and its legal characters.
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def new_message_id() -> str:
    """Return a new message id: a random UUID in 32 hexadecimal digits."""
    return uuid.uuid4().hex


def message_id(message: Message[object]) -> str | None:
    """Return the id that the producer gave `message`, `None` if it gave none: the key for `Dedup(..., key=message_id)`.

    It is the text of the last header `message-id`, whatever topic the message is on.
    """
    found = message.header(MESSAGE_ID)
    return None if found is None else found.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send: where to, what, and under which id.

    `value` and `key` are bytes, or `None`. `headers` are the sender's own; the id is added to them when it is sent. Without a `partition`
    the key decides, as Kafka's own partitioner does (murmur2). Raises `ConfigurationError` for what Kafka would never take.
    """

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    message_id: str = field(default_factory=new_message_id)
    context: Headers = field(default_factory=trace_context, compare=False, repr=False)
    """Headers of the trace that it belongs to, beside its own: see `Tracing`."""

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not _TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ConfigurationError(f"topic is {self.topic!r}; use up to 249 letters, digits, '.', '_' and '-'")
        for what, given in (("value", self.value), ("key", self.key)):
            if given is not None and not isinstance(given, bytes):
                raise ConfigurationError(f"the {what} of a message to {self.topic!r} is of type {type(given).__name__}; give bytes or None")
        _check_partition(self.partition, self.topic)
        _check_id(self.message_id, self.topic)
        object.__setattr__(self, "headers", tuple(_checked_header(header, self.topic) for header in self.headers))

    @property
    def all_headers(self) -> Headers:
        """Those of its trace, where the sender gave none of that name, and the sender's own."""
        if not self.context:
            return self.headers
        names = {name for name, _ in self.headers}
        return (*(header for header in self.context if header[0] not in names), *self.headers)

    @property
    def sent_headers(self) -> Headers:
        """The headers as they are sent: all without an older id, then the id."""
        own = tuple(header for header in self.all_headers if header[0] != MESSAGE_ID)
        return (*own, (MESSAGE_ID, self.message_id.encode("utf-8", "surrogateescape")))


def outgoing_of(messages: Iterable[Outgoing]) -> list[Outgoing]:
    """Return the messages of any iterable, so that a generator is read once. Raises `ConfigurationError` if one is no `Outgoing`."""
    if isinstance(messages, Outgoing | str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise ConfigurationError(f"messages are of type {type(messages).__name__}; give a list of Outgoing(topic, value)")
    found = list(messages)
    for place, message in enumerate(found):
        if not isinstance(message, Outgoing):
            raise ConfigurationError(f"message {place} of the list is of type {type(message).__name__}; give Outgoing(topic, value)")
    return found


def refuse_own_headers(message: Outgoing) -> None:
    """Raise `ConfigurationError` if the sender set a header that only Ackwise sets."""
    if found := next((name for name, _ in message.headers if name.startswith(_OURS)), None):
        raise ConfigurationError(
            f"a message to {message.topic!r} has the header {found!r}, and names that start with {_OURS!r} are Ackwise's own: "
            "its consumers would take it for a copy; leave such headers out, also where those of another message are passed on"
        )


class Acked(NamedTuple):
    """Every in-sync replica has the message: where it was written."""

    topic: str
    partition: int
    offset: int
    """-1 if the broker recognised a repetition, and no longer knew where the first one is."""
    timestamp: int
    """Of the record, in epoch milliseconds."""
    message_id: str


class SendFailed(NamedTuple):
    """The message was not acknowledged. Unless it was refused, it may be there all the same: send it again under the same id."""

    cause: str
    """One sentence, without anything of the payload."""
    retriable: bool
    """`False`: refused for good, and not written."""
    error: str = ""
    """The name of the class of the client's error."""


SendAnswer = Acked | SendFailed


class MessageSender(Protocol):
    """Sends messages to Kafka, acknowledged by all in-sync replicas."""

    async def send_many(self, messages: Sequence[Outgoing], *, stop_keys: bool = False) -> list[SendAnswer]:
        """Send all; one answer for each, in order. Raises nothing but cancellation.

        Of a partition the messages are written in the order of the list. Behind one that failed and may be sent again, none is sent;
        with `stop_keys` none with its key behind one that was refused for good. What was not tried has no `error` in its answer.
        """
        ...


def _check_partition(given: object, topic: str) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= _HIGHEST_PARTITION):
        raise ConfigurationError(f"partition of a message to {topic!r} is {given!r}; give a number from 0, or leave it out")


def _check_id(given: object, topic: str) -> None:
    if not isinstance(given, str) or not given or "\0" in given:
        raise ConfigurationError(f"message_id of a message to {topic!r} is {given!r}; give a text that is not empty, or leave it out")
    try:
        size = len(given.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        raise ConfigurationError(f"message_id of a message to {topic!r} is no valid text ({given!r}); give another one") from None
    if size > _LONGEST_ID:
        raise ConfigurationError(f"message_id of a message to {topic!r} has more than {_LONGEST_ID} bytes; give a shorter one")


def _checked_header(header: object, topic: str) -> tuple[str, bytes | None]:
    match header:
        case (str(name), bytes() | None as value):
            try:
                name.encode()
            except UnicodeEncodeError:
                raise ConfigurationError(f"a header of a message to {topic!r} has the name {name!r}, which UTF-8 can't write") from None
            return name, value
    raise ConfigurationError(f"a header of a message to {topic!r} is no pair of a name (str) and a value (bytes or None)")


class TopicMissing(PublishUnavailable):
    """The brokers know no topic of this name: a copy for it waits until it is created."""


class Publisher(Protocol):
    """Publishes copies with acks=all."""

    async def publish(self, copies: Sequence[Copy]) -> list[PublishUnavailable | PublishRefused | None]:
        """One answer per copy, in order: `None` once every in-sync replica has it, otherwise why it is not there."""
        ...
