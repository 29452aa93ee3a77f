"""A message as the columns of an outbox row, and back. Pure."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.message import Headers
from ackwise.middleware.outbox import (
    CheckAnswer,
    OutboxRow,
    Parked,
    Prepared,
    RowState,
    TransactionOutcome,
    UnreadableRow,
    key_hash,
    packed_headers,
    shard_of,
    unpacked_headers,
)
from ackwise.middleware.outgoing import Outgoing

__all__ = [
    "BARRIERS_KEPT",
    "CAUSE",
    "DECIDED",
    "MOST_BYTES",
    "RowColumns",
    "columns_of",
    "message_of",
    "parked_of",
    "prepared_of",
    "row_of",
    "state_of",
]

#: Bytes of rows that `pending` gives at once at most, if that is more than one row: a relay has to hold them in memory.
MOST_BYTES: Final = 32 * 1024 * 1024

#: Characters of a cause that a row keeps.
CAUSE: Final = 500

#: Seconds that a barrier is kept at least: the half message that it is for may be in another database, where a check-back may be late.
BARRIERS_KEPT: Final = 30 * 86400.0

#: What becomes of a half message.
DECIDED: Final = {
    TransactionOutcome.COMMIT: RowState.LOCAL_COMMIT,
    TransactionOutcome.ROLLBACK: RowState.LOCAL_ROLLBACK,
    TransactionOutcome.UNKNOWN: RowState.PREPARED,
}


class RowColumns(NamedTuple):
    """What is inserted for a message."""

    message_id: str
    shard: int
    topic: str
    message_key: bytes | None
    key_hash: int | None
    partition: int | None
    headers: str | None
    value: bytes | None
    size: int
    """Bytes of value, key and headers."""


def columns_of(message: Outgoing) -> RowColumns:
    """Return the columns of `message`. Raises `ConfigurationError` for what no text of a database can hold."""
    headers = packed_headers(message.all_headers)
    try:
        message.message_id.encode()
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"message_id of a message to {message.topic!r} is no valid text ({message.message_id!r}); give one that UTF-8 can write"
        ) from None
    return RowColumns(
        message.message_id,
        shard_of(message),
        message.topic,
        message.key,
        None if message.key is None else key_hash(message.topic, message.key),
        message.partition,
        headers,
        message.value,
        len(message.value or b"") + len(message.key or b"") + len(headers or ""),
    )


def state_of(answer: CheckAnswer) -> RowState:
    """Return what an answer to a check-back makes of a half message."""
    is_parked = answer.outcome is TransactionOutcome.UNKNOWN and answer.again_in is None
    return RowState.MESSAGE_ERROR if is_parked else DECIDED[answer.outcome]


def message_of(row: Any, shard: int = 0) -> Outgoing:
    """Return the message of a row that can be asked for its columns by name. Raises `UnreadableRow`."""
    try:
        headers = unpacked_headers(row["headers"])
        return Outgoing(row["topic"], row["value"], row["message_key"], headers, row["partition"], message_id=row["message_id"])
    except (ValueError, TypeError, ConfigurationError) as error:
        why = str(error) if isinstance(error, ConfigurationError) else f"its headers, {type(error).__name__}"
        raise UnreadableRow(row["id"], shard, str(row["topic"]), why) from None


def row_of(row: Any) -> OutboxRow:
    """Return the row for a relay; it has the columns `id`, `shard`, `attempts` and `created_ms` besides."""
    return OutboxRow(row["id"], row["shard"], message_of(row, row["shard"]), row["attempts"], int(row["created_ms"]))


def prepared_of(row: Any) -> Prepared:
    """Return the row for a check-back."""
    return Prepared(
        row["id"], message_of(row), row["tx_id"], row["checks"], int(row["created_ms"]), row["producer_group"], row["barrier_in"]
    )


def parked_of(row: Any, *, is_whole: bool) -> Parked:
    """Return a parked row; headers and value only if it `is_whole`."""
    shown = (_headers_as_far_as_readable(row["headers"]), row["value"]) if is_whole else ((), None)
    return Parked(
        row["id"],
        row["topic"],
        row["message_id"],
        row["message_key"],
        row["attempts"],
        row["checks"],
        row["cause"] or "",
        int(row["created_ms"]),
        *shown,
    )


def _headers_as_far_as_readable(packed: str | None) -> Headers:
    """The headers; none of a text that is parked because nobody can read it."""
    try:
        return unpacked_headers(packed)
    except (ValueError, TypeError):
        return ()
