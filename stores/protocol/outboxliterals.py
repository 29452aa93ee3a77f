"""Rows of an outbox as SQL for MariaDB and MySQL: every value is a literal, which no encoding and no mode of a session changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.protocol.outboxrows import RowColumns

__all__ = ["MAX_PACKET", "TO_SEND", "inserts", "is_small", "literal", "require_room"]

#: What a server says it takes in one packet.
MAX_PACKET: Final = "SELECT @@max_allowed_packet"

#: Bytes of a packet that every server takes, and those that go with a statement.
_SMALL: Final = 1_000_000
_AROUND: Final = 1000

#: Characters that one statement takes at most, if that is more than one row. A server takes 1 MiB at least, and 16 or 64 by default.
_LONGEST: Final = 800_000

#: What a row of a business transaction has in the last five columns.
TO_SEND: Final = "2, NULL, '', '', ''"

_INSERT: Final = (
    "INSERT INTO {rows} (message_id, shard, topic, message_key, key_hash, `partition`, headers, value, size, state, next_at, tx_id, "
    "producer_group, barrier_in, created) VALUES "
)


def literal(value: str | bytes | None) -> str:
    """Return a text, as UTF-8, or bytes as a literal in hexadecimal digits."""
    if value is None:
        return "NULL"
    return f"x'{(value.encode() if isinstance(value, str) else value).hex()}'"


def inserts(table: str, rows: Sequence[RowColumns], more: str = TO_SEND) -> Iterator[str]:
    """Return statements that insert `rows` in their order; `more` are the values of the last columns.

    The server gives ids in the order of the values of a statement.
    """
    begin, some, length = _INSERT.format(rows=table), list[str](), 0
    for row in rows:
        values = _values(row, more)
        if some and length + len(values) > _LONGEST:
            yield begin + ", ".join(some)
            some, length = [], 0
        some.append(values)
        length += len(values)
    if some:
        yield begin + ", ".join(some)


def is_small(packets: Sequence[str]) -> bool:
    """Return whether every server takes them."""
    return all(len(packet) <= _SMALL for packet in packets)


def require_room(packets: Sequence[str], rows: Sequence[RowColumns], limit: int, address: str) -> None:
    """Raise `ConfigurationError` for a row that the server does not take, before it cuts the connection because of it."""
    size = max(len(packet) for packet in packets) + _AROUND
    if size > limit:
        topic = max(rows, key=lambda row: row.size).topic
        raise ConfigurationError(
            f"{address}: a message to {topic!r} needs a statement of {size} bytes, twice those of its value, and the server's "
            f"max_allowed_packet is {limit}; raise that, or send a reference to a place where the value is"
        )


def _values(row: RowColumns, more: str) -> str:
    texts = (literal(row.message_id), str(row.shard), literal(row.topic), literal(row.message_key), _number(row.key_hash))
    rest = (_number(row.partition), literal(row.headers), literal(row.value), str(row.size), more, "UTC_TIMESTAMP(6)")
    return f"({', '.join(texts)}, {', '.join(rest)})"


def _number(value: int | None) -> str:
    return "NULL" if value is None else f"{value:d}"
