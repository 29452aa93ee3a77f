"""Messages and batches to call a handler with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from ackwise.middleware.batch import Batch
from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Delivery, Message, Origin

__all__ = ["batch", "message"]

T = TypeVar("T")


def message(
    value: T,
    *,
    key: str | bytes | None = None,
    headers: Iterable[tuple[str, bytes | None]] = (),
    topic: str = "test",
    partition: int = 0,
    offset: int = 0,
    timestamp_ms: int = 0,
    attempt: int = 1,
) -> Message[T]:
    """A message with the decoded `value`, as a handler gets it: `await bill(message(Order(…)))`. Raises `ConfigurationError`."""
    if isinstance(attempt, bool) or not isinstance(attempt, int) or attempt < 1:
        raise ConfigurationError(f"attempt is {attempt!r}; the first one is 1")
    origin = Origin(topic, partition, offset, timestamp_ms)
    raw: Any = value if isinstance(value, bytes) else None
    raw_key = key.encode() if isinstance(key, str) else key
    return Message(Delivery(*origin, raw_key, raw, tuple(headers), origin, attempt), value)


def batch(values: Iterable[T | Message[T]], *, topic: str = "test", partition: int = 0) -> Batch[T]:
    """A batch of these values, or messages: `await bill(orders := batch([Order(…), Order(…)]))`, and look at `orders.ack_index`.

    Values have the offsets 0, 1 and so on.
    """
    made = [
        value if isinstance(value, Message) else message(value, topic=topic, partition=partition, offset=offset)
        for offset, value in enumerate(values)
    ]
    return Batch(made)
