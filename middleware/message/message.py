"""`Delivery`, a message as the host fetched it, and `Message`, the same as a handler sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar, overload

from ackwise.middleware.duration import parse_duration

#: Gives the handler that runs in this task the given number of seconds more.
extending: ContextVar[Callable[[float], None] | None] = ContextVar("ackwise_extending", default=None)

T_co = TypeVar("T_co", covariant=True)

Headers = tuple[tuple[str, bytes | None], ...]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Origin(NamedTuple):
    """The first record of a message: where the producer wrote it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


class Delivery(NamedTuple):
    """One copy of a message, raw, with where it was read and where it comes from."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The producer's headers; ours are taken out."""
    origin: Origin
    attempt: int = 1
    """`reconsume_times + 1`."""
    first_seen_ms: int | None = None
    handler: str | None = None
    """The handler that a retry copy names; `None` on a source topic."""
    replay_id: bytes | None = None

    @property
    def at_origin(self) -> bool:
        """Return whether this copy is the producer's own record."""
        origin = self.origin
        return self.offset == origin.offset and self.partition == origin.partition and self.topic == origin.topic


def delivery_of(place: tuple[str, int], record: Any) -> Delivery:
    """A record of a Kafka client (offset, timestamp, key, value, headers) as it was read at its origin; a delivery is its own."""
    if isinstance(record, Delivery):
        return record
    topic, partition = place
    origin = Origin(topic, partition, record.offset, record.timestamp)
    return Delivery(topic, partition, record.offset, record.timestamp, record.key, record.value, tuple(record.headers), origin)


class Message(Generic[T_co]):
    """One message as a handler sees it; read-only. Coordinates are those of the origin record, on every attempt."""

    __slots__ = ("_place", "_record", "_value", "connection", "fencing_token", "in_place")

    fencing_token: int | None
    """Grows with every claim of this message that follows another: a resource that remembers the highest one it saw can
    refuse a worker that was thought dead. `None` without a claim: no `Dedup`, no key, or the store is down."""
    connection: Any
    """What to write through under `Transactional`, as `Batch.connection`."""
    in_place: int
    """How often it was suspended in place since it was sent back for the last time; 0 for a handler without an order."""

    def __init__(self, delivery: Delivery | Any, value: T_co, place: tuple[str, int] = ("", 0)) -> None:
        """`delivery` is the copy that was read, or what a client gave for a record of `place`."""
        self._record = delivery
        self._place = place
        self._value = value
        self.fencing_token = None
        self.connection = None
        self.in_place = 0

    @property
    def value(self) -> T_co:
        """The decoded payload."""
        return self._value

    @property
    def key(self) -> bytes | None:
        """The record's key, raw."""
        key: bytes | None = self._record.key
        return key

    @property
    def key_text(self) -> str | None:
        """The record's key as UTF-8 text. Raises `UnicodeDecodeError` for other bytes."""
        return None if self.key is None else self.key.decode()

    @property
    def raw(self) -> bytes | None:
        """The record's value, raw."""
        value: bytes | None = self._record.value
        return value

    @property
    def headers(self) -> Headers:
        """The producer's headers, in order; a name may stand more than once."""
        return self.delivery.headers

    def header(self, name: str) -> bytes | None:
        """The last header of that name, or `None`."""
        return next((value for key, value in reversed(self.delivery.headers) if key == name), None)

    @property
    def topic(self) -> str:
        """The origin topic."""
        return self.delivery.origin.topic

    @property
    def partition(self) -> int:
        """The origin partition."""
        return self.delivery.origin.partition

    @property
    def offset(self) -> int:
        """The origin offset."""
        return self.delivery.origin.offset

    @property
    def timestamp_ms(self) -> int:
        """The origin record's timestamp, epoch milliseconds."""
        return self.delivery.origin.timestamp_ms

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1; attempts in place count."""
        return self.delivery.attempt + self.in_place

    @property
    def reconsume_times(self) -> int:
        """RocketMQ's count of the same: how often this message was sent back or suspended in place, from 0."""
        return self.attempt - 1

    @property
    def delivery(self) -> Delivery:
        """The copy that was read, with its physical coordinates."""
        self._record = delivery = delivery_of(self._place, self._record)
        return delivery

    def extend(self, seconds: float | str) -> None:
        """The handler that has this message needs more time: its consume timeout ends `seconds` from now (a number, or `"5m"`).

        Raises `RuntimeError` outside of a handler, and `ConfigurationError` for what is no duration.
        """
        duration = parse_duration(seconds, what="the time that the handler asks for")
        if (extend := extending.get()) is None:
            raise RuntimeError("extend() was called outside of a handler; call it where the message is handled")
        extend(duration)

    def __repr__(self) -> str:
        return f"<Message {self.delivery.origin} attempt={self.delivery.attempt}>"


class Messages(Sequence[Message[T_co]]):
    """The messages of a batch, made when one of them is first read. `number` is how many there will be."""

    __slots__ = ("_made", "_make", "_number")

    def __init__(self, number: int, make: Callable[[], Iterable[Message[T_co]]]) -> None:
        self._number = number
        self._make = make
        self._made: tuple[Message[T_co], ...] | None = None

    @property
    def all(self) -> tuple[Message[T_co], ...]:
        """All of them."""
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[Message[T_co]]:
        return iter(self.all)

    @overload
    def __getitem__(self, index: int) -> Message[T_co]: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message[T_co], ...]: ...
    def __getitem__(self, index: int | slice) -> Message[T_co] | tuple[Message[T_co], ...]:
        return self.all[index]
