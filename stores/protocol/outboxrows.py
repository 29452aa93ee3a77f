"""A message as the columns of an outbox row, and back; and who owns which shard. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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


class Shard(NamedTuple):
    """A shard as the database has it."""

    number: int
    token: int
    owner: str
    """Empty if it is free."""
    is_leased: bool
    """Whether the lease of its owner is alive, by the database's clock."""


class Division(NamedTuple):
    """What `own` changes; everything by number."""

    keep: list[int]
    take: list[int]
    """Their tokens grow by one."""
    give: list[int]


def divide(shards: Sequence[Shard], owner: str, share: int) -> Division:
    """Return what `owner` keeps, takes and gives back, so that it has `share` shards if enough are free or expired.

    An own shard whose lease has passed is kept if nobody took it, with its token: nobody else wrote meanwhile.
    """
    mine = [shard.number for shard in shards if shard.owner == owner]
    free = [shard.number for shard in shards if shard.owner != owner and not (shard.owner and shard.is_leased)]
    keep, give = mine[:share], mine[share:]
    return Division(keep, free[: max(0, share - len(keep))], give)


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


def cause_of(text: str) -> str:
    """Return what a row keeps of a cause."""
    return text[:CAUSE].encode("utf-8", "replace").decode()


def text_of(value: str | bytes) -> str:
    """Return a text, which some databases keep as bytes."""
    return value.decode() if isinstance(value, bytes) else value


def row_of(row: Sequence[Any]) -> OutboxRow:
    """Return the row for a relay. Raises `UnreadableRow`."""
    id, shard, attempts, created_ms, _size, _is_blocked, *message = row
    return OutboxRow(id, shard, _message(id, shard, *message), attempts, int(created_ms))


def prepared_of(row: Sequence[Any]) -> Prepared:
    """Return the row for a check-back. Raises `UnreadableRow`."""
    id, tx_id, checks, created_ms, producer_group, barrier_in, *message = row
    names = text_of(producer_group), text_of(barrier_in)
    return Prepared(id, _message(id, 0, *message), text_of(tx_id), checks, int(created_ms), *names)


def parked_of(row: Sequence[Any]) -> Parked:
    """Return a parked row, with headers and value as far as it has them."""
    id, topic, message_id, key, attempts, checks, cause, created_ms, headers, value = row
    shown = _headers_as_far_as_readable(headers), value
    return Parked(id, text_of(topic), text_of(message_id), key, attempts, checks, cause or "", int(created_ms), *shown)


def _message(
    id: int,
    shard: int,
    topic: str | bytes,
    value: bytes | None,
    key: bytes | None,
    headers: str | None,
    partition: int | None,
    message_id: str | bytes,
) -> Outgoing:
    try:
        return Outgoing(text_of(topic), value, key, unpacked_headers(headers), partition, message_id=text_of(message_id))
    except (ValueError, TypeError, ConfigurationError) as error:
        why = str(error) if isinstance(error, ConfigurationError) else f"its headers, {type(error).__name__}"
        raise UnreadableRow(id, shard, str(topic), why) from None


def _headers_as_far_as_readable(packed: str | None) -> Headers:
    """The headers; none of a text that is parked because nobody can read it."""
    try:
        return unpacked_headers(packed)
    except (ValueError, TypeError):
        return ()
