"""`Delivery`, a message as the host fetched it, and `Message`, the same as a handler sees it."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

__all__ = ["Delivery", "Headers", "Message", "Origin"]

T_co = TypeVar("T_co", covariant=True)

Headers = tuple[tuple[str, bytes | None], ...]


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
        """Whether this copy is the producer's own record."""
        origin = self.origin
        return self.offset == origin.offset and self.partition == origin.partition and self.topic == origin.topic


class Message(Generic[T_co]):
    """One message as a handler sees it; read-only. Coordinates are those of the origin record, on every attempt."""

    __slots__ = ("_delivery", "_value", "connection", "fencing_token")

    fencing_token: int | None
    """Grows with every claim of this message that follows another: a resource that remembers the highest one it saw can
    refuse a worker that was thought dead. `None` without a claim: no `Dedup`, no key, or the store is down."""
    connection: Any
    """What to write through under `Transactional`, as `Batch.connection`."""

    def __init__(self, delivery: Delivery, value: T_co) -> None:
        self._delivery = delivery
        self._value = value
        self.fencing_token = None
        self.connection = None

    @property
    def value(self) -> T_co:
        """The decoded payload."""
        return self._value

    @property
    def key(self) -> bytes | None:
        """The record's key, raw."""
        return self._delivery.key

    @property
    def raw(self) -> bytes | None:
        """The record's value, raw."""
        return self._delivery.value

    @property
    def headers(self) -> Headers:
        """The producer's headers, in order; a name may stand more than once."""
        return self._delivery.headers

    def header(self, name: str) -> bytes | None:
        """The last header of that name, or `None`."""
        return next((value for key, value in reversed(self._delivery.headers) if key == name), None)

    @property
    def topic(self) -> str:
        """The origin topic."""
        return self._delivery.origin.topic

    @property
    def partition(self) -> int:
        """The origin partition."""
        return self._delivery.origin.partition

    @property
    def offset(self) -> int:
        """The origin offset."""
        return self._delivery.origin.offset

    @property
    def timestamp_ms(self) -> int:
        """The origin record's timestamp, epoch milliseconds."""
        return self._delivery.origin.timestamp_ms

    @property
    def reconsume_times(self) -> int:
        """How often this message was sent back; 0 on its first delivery."""
        return self._delivery.attempt - 1

    @property
    def delivery(self) -> Delivery:
        """The copy that was read, with its physical coordinates."""
        return self._delivery

    def __repr__(self) -> str:
        return f"<Message {self._delivery.origin} attempt={self._delivery.attempt}>"
