"""How an outbox stands: its status, its parked rows, complaints about it, and its cleanup."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import OutboxStatus, Parked
from ackwise.stores.postgres import checking, schema
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxrows import BARRIERS_KEPT, parked_of
from ackwise.stores.protocol.purpose import OUTBOX
from ackwise.stores.serverclock import refuse_jumped

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    AnyConnection = Connection | PoolConnectionProxy

__all__ = ["clean", "complaints", "parked", "requeue", "require_relay_rights", "require_rights", "show", "status"]

_STATUS: Final = """
WITH sendable AS (SELECT count(*) AS rows, min(created) AS oldest FROM {rows} WHERE state = 2 AND NOT behind),
    waiting AS (SELECT count(*) AS rows, min(created) AS oldest FROM {rows} WHERE state = 2 AND behind AND key_hash IS NOT NULL)
SELECT (SELECT sendable.rows + waiting.rows FROM sendable, waiting) AS waiting,
    (SELECT least(sendable.oldest, waiting.oldest) FROM sendable, waiting) AS oldest,
    count(*) FILTER (WHERE state = 1) AS prepared, min(created) FILTER (WHERE state = 1) AS oldest_prepared,
    count(*) FILTER (WHERE state = 5) AS parked, min(created) FILTER (WHERE state = 5) AS oldest_parked,
    (SELECT value FROM {meta} WHERE name = 'relay_kind') AS relay_kind, clock_timestamp() AS now
FROM {rows} WHERE state = 1 OR state NOT IN (1, 2, 4)
"""
_OWNERS: Final = """
SELECT r.owner, (SELECT count(*) FROM {shards} AS s WHERE s.owner = r.owner AND s.leased_until > clock_timestamp())
FROM {relays} AS r WHERE leased_until > clock_timestamp() ORDER BY owner
"""
_PARKED: Final = """
SELECT id, topic, message_id, message_key, attempts, checks, cause, extract(epoch FROM created) * 1000 AS created_ms {more}
FROM {rows} WHERE state = 5 AND state NOT IN (1, 2, 4) AND {which} ORDER BY id LIMIT $1
"""
_REQUEUE: Final = """
UPDATE {rows} SET state = 2, attempts = 0, checks = 0, next_at = NULL, cause = NULL
WHERE state = 5 AND state NOT IN (1, 2, 4) AND ($1::bigint[] IS NULL OR id = ANY ($1))
"""

_AT_ONCE: Final = 1000
"""Rows that one statement of the cleanup deletes."""

_CLEAN_ROWS: Final = """
DELETE FROM {rows} WHERE id IN (
    SELECT id FROM {rows} WHERE state = {state} AND state NOT IN (1, 2, 4)
        AND CASE WHEN state = 5 THEN coalesce(next_at, created) ELSE created END < $1::timestamptz - $2 * interval '1 s'
    ORDER BY id LIMIT {at_once} FOR UPDATE SKIP LOCKED
)
"""
# Of a row that was sent, `next_at` is when it goes; of a parked one it is when it was parked.
_CLEAN_SENT: Final = """
DELETE FROM {rows} WHERE id IN (
    SELECT id FROM {rows} WHERE state = 4 AND next_at < $1::timestamptz - $2 * interval '1 s'
    ORDER BY next_at LIMIT {at_once} FOR UPDATE SKIP LOCKED
)
"""
_CLEAN_BARRIERS: Final = """
DELETE FROM {barrier} WHERE tx_id IN (
    SELECT tx_id FROM {barrier} AS b WHERE created < $1::timestamptz - $2 * interval '1 s'
        AND NOT EXISTS (SELECT FROM {rows} AS r WHERE r.tx_id = b.tx_id AND r.tx_id <> '' AND r.state = 1)
    LIMIT {at_once} FOR UPDATE SKIP LOCKED
)
"""
_CLEAN_RELAYS: Final = "DELETE FROM {relays} WHERE leased_until < clock_timestamp() - interval '1 day'"


async def status(connection: AnyConnection, tables: OutboxTables) -> OutboxStatus:
    """See `OutboxStore.status`."""
    row = await connection.fetchrow(_STATUS.format(**tables.names))
    owners = await connection.fetch(_OWNERS.format(**tables.names))
    assert row is not None

    def age(name: str) -> float | None:
        return None if row[name] is None else max(0.0, (row["now"] - row[name]).total_seconds())

    return OutboxStatus(
        row["waiting"],
        age("oldest"),
        row["prepared"],
        age("oldest_prepared"),
        row["parked"],
        age("oldest_parked"),
        {str(owner): int(count) for owner, count in owners},
        row["relay_kind"],
    )


async def parked(connection: AnyConnection, tables: OutboxTables, limit: int, after: int) -> list[Parked]:
    """See `OutboxStore.parked`."""
    statement = _PARKED.format(**tables.names, which="id > $2", more="")
    return [parked_of(row, is_whole=False) for row in await connection.fetch(statement, limit, after)]


async def show(connection: AnyConnection, tables: OutboxTables, id: int) -> Parked | None:
    """See `OutboxStore.show`."""
    row = await connection.fetchrow(_PARKED.format(**tables.names, which="id = $2", more=", headers, value"), 1, id)
    return None if row is None else parked_of(row, is_whole=True)


async def requeue(connection: AnyConnection, tables: OutboxTables, rows: Collection[int] | None) -> int:
    """See `OutboxStore.requeue`."""
    done = await connection.execute(_REQUEUE.format(**tables.names), None if rows is None else list(rows))
    return int(done.rpartition(" ")[2])


async def require_rights(connection: AnyConnection, tables: OutboxTables, address: str) -> None:
    """Raise `ConfigurationError` if the user may do neither what a business transaction does nor what a relay does."""
    missing = await _missing(connection, _of_business(tables))
    if missing and await _missing(connection, _of_relay(tables)):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def require_relay_rights(connection: AnyConnection, tables: OutboxTables, address: str) -> None:
    """Raise `ConfigurationError` if the user may not do what a relay does."""
    if missing := await _missing(connection, _of_relay(tables)):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def complaints(connection: AnyConnection, tables: OutboxTables, address: str) -> list[str]:
    """Return what is wrong or unwise, one sentence each. Raise `ConfigurationError` as `open` does."""
    if await schema.version(connection, tables.all, OUTBOX) is None:
        return [OUTBOX.not_there(address)]
    await schema.require_tables(connection, tables.all, OUTBOX, address)
    await checking.require_durable(connection, address)
    if missing := await _missing(connection, _of_relay(tables)):
        return [f"{address}: {sentence}" for sentence in missing]
    found = await status(connection, tables)
    said = []
    if found.waiting and not found.owners and found.relay_kind != "cdc":
        said.append(f"{found.waiting} rows wait and no relay has its lease; start a worker with Outbox, or `ackwise relay --outbox URL`")
    if found.parked:
        said.append(f"{found.parked} rows are parked, the oldest for {found.oldest_parked:.0f} s; see `ackwise outbox show URL`")
    return [f"{address}: {sentence}" for sentence in said]


async def clean(connection: AnyConnection, tables: OutboxTables, keeping: Keeping, address: str) -> int:
    """Delete rows that need not be kept, barriers that nobody needs, and relays that are gone; return how many."""
    now: Any = await connection.fetchval("SELECT clock_timestamp()")
    refuse_jumped(now.timestamp(), address)
    deleted = 0
    todo = [(_CLEAN_ROWS, 3, keeping.retention), (_CLEAN_SENT, 4, 0.0), (_CLEAN_BARRIERS, 0, max(keeping.retention, BARRIERS_KEPT))]
    if keeping.parked is not None:
        todo.append((_CLEAN_ROWS, 5, keeping.parked))
    for statement, state, seconds in todo:
        while some := _count(await connection.execute(statement.format(**tables.names, at_once=_AT_ONCE, state=state), now, seconds)):
            deleted += some
    await connection.execute(_CLEAN_RELAYS.format(**tables.names))
    return deleted


def _of_business(tables: OutboxTables) -> dict[str, str]:
    return {tables.rows: "INSERT", tables.barrier: "SELECT, INSERT", tables.meta: "SELECT"}


def _of_relay(tables: OutboxTables) -> dict[str, str]:
    return {
        tables.rows: "SELECT, UPDATE, DELETE",
        tables.shards: "SELECT, UPDATE",
        tables.relays: "SELECT, INSERT, UPDATE, DELETE",
        tables.barrier: "SELECT, INSERT",
        tables.meta: "SELECT, INSERT",
    }


async def _missing(connection: AnyConnection, needed: dict[str, str]) -> list[str]:
    return [
        sentence for table, rights in needed.items() for sentence in await checking.missing_rights(connection, [table], *rights.split(", "))
    ]


def _count(done: str) -> int:
    return int(done.rpartition(" ")[2])
