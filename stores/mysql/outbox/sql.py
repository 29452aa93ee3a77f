"""What the statements of an outbox have in common: their transaction, numbers and names as literals, and their rows by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from asyncmy.cursors import Cursor

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.outbox.tables import NAMES
from ackwise.stores.protocol import outboxliterals
from ackwise.stores.protocol.outboxliterals import literal
from ackwise.stores.protocol.outboxrows import CAUSE, RowColumns

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["BEGIN", "MESSAGE", "NOW", "cause", "changed", "name", "named", "numbers", "require_room", "seconds"]

#: Each look sees what is committed by now, and no statement locks a gap, in which the business could not insert.
BEGIN: Final = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; "

NOW: Final = "UTC_TIMESTAMP(6)"

#: Columns that make an `Outgoing`.
MESSAGE: Final = ("topic", "value", "message_key", "headers", "partition", "message_id")

_TEXTS: Final = ("topic", "message_id", "headers", "cause", "tx_id", "producer_group", "barrier_in")


def name(what: str, text: str) -> str:
    """Return the name as a literal. Raises `ConfigurationError` for one that is too long, which some servers would cut."""
    if len(text.encode()) > NAMES:
        raise ConfigurationError(f"{what} {text[:60]!r}… has more than {NAMES} bytes; give a shorter one")
    return literal(text)


def cause(text: str) -> str:
    """Return what a row keeps of a cause, as SQL."""
    return f"CONVERT({literal(text[:CAUSE].encode('utf-8', 'replace'))} USING utf8mb4)"


def seconds(count: float) -> str:
    """Return that many seconds from now."""
    return f"{NOW} + INTERVAL {round(count * 1e6)} MICROSECOND"


def numbers(values: Iterable[int]) -> str:
    """Return a list for IN, which finds nothing if it is empty."""
    return ", ".join(map(str, sorted(values))) or "NULL"


async def require_room(connection: Connection, packets: Sequence[str], rows: Sequence[RowColumns], address: str) -> None:
    """Raise `ConfigurationError` for a row that the server does not take; it is asked only if one is large."""
    if not outboxliterals.is_small(packets):
        ((limit,),) = await rows_of(connection, outboxliterals.MAX_PACKET)
        outboxliterals.require_room(packets, rows, limit, address)


async def changed(connection: Connection, packet: str) -> int:
    """Return how many rows the statements of `packet` changed. Raises what asyncmy raises."""
    count = 0
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute(packet)
        while True:
            count += 0 if cursor.description else max(0, _int(cursor.rowcount))
            if not await cursor.nextset():
                return count


async def named(connection: Connection, columns: Sequence[str], packet: str) -> list[dict[str, Any]]:
    """Return the rows of `packet`, by the names of `columns`, texts decoded."""
    return [_by_name(columns, row) for row in await rows_of(connection, packet)]


def _by_name(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    return {
        column: value.decode() if column in _TEXTS and isinstance(value, bytes) else value
        for column, value in zip(columns, row, strict=True)
    }


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value
