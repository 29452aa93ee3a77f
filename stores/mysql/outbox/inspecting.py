"""How an outbox stands: its status, its parked rows, complaints about it, and its cleanup."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.middleware.outbox import OutboxStatus, Parked, RowState
from ackwise.stores.mysql import checking, maintenance, schema
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.outbox.sql import BEGIN, NOW, changed, named, numbers
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxkeeping import Keeping
from ackwise.stores.protocol.outboxliterals import literal
from ackwise.stores.protocol.outboxrows import BARRIERS_KEPT, parked_of
from ackwise.stores.protocol.purpose import OUTBOX

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["clean", "complaints", "parked", "requeue", "require_relay_rights", "require_writer_rights", "show", "status"]

# The row with the lowest id is the oldest, and the index knows it.
_STATUS: Final = """
SELECT c.state, c.number, TIMESTAMPDIFF(MICROSECOND, r.created, {now}) FROM (
    SELECT state, COUNT(*) AS number, MIN(id) AS oldest FROM {rows} FORCE INDEX (by_due) WHERE state IN (1, 2, 5) GROUP BY state
) AS c JOIN {rows} AS r ON r.id = c.oldest
"""
_OWNERS: Final = """
SELECT r.owner, COUNT(s.shard) FROM {relays} AS r LEFT JOIN {shards} AS s ON s.owner = r.owner AND s.leased_until > {now}
WHERE r.leased_until > {now} GROUP BY r.owner ORDER BY r.owner
"""
_RELAY_KIND: Final = "SELECT value FROM {meta} WHERE name = 'relay_kind'"
_PARKED: Final = "SELECT {columns} FROM {rows} WHERE state = 5 AND {which} ORDER BY id LIMIT {limit}"
_NAMES: Final = ("id", "topic", "message_id", "message_key", "attempts", "checks", "cause", "created_ms")
_COLUMNS: Final = (
    "id, topic, message_id, message_key, attempts, checks, cause, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created) DIV 1000 AS created_ms"
)
_REQUEUE: Final = """
UPDATE {rows} FORCE INDEX ({index}) SET state = 2, attempts = 0, checks = 0, next_at = NULL, cause = NULL WHERE state = 5 {which}; COMMIT
"""

_AT_ONCE: Final = 1000
"""Rows that one statement of the cleanup deletes."""

_OLD_ROWS: Final = "SELECT id FROM {rows} FORCE INDEX (by_due) WHERE state = {state} AND {since} < {before} LIMIT {at_once}"
_OLD_BARRIERS: Final = """
SELECT b.tx_id FROM {barrier} AS b WHERE b.created < {before} AND {unneeded} ORDER BY b.tx_id LIMIT {at_once}
"""
_UNNEEDED: Final = "NOT EXISTS (SELECT 1 FROM {rows} AS r WHERE r.tx_id = b.tx_id AND r.state = 1)"

#: The column that an attempt to change something names.
_COLUMN_OF: Final = {"rows": "attempts", "shards": "token", "relays": "leased_until", "barrier": "outcome", "meta": "value"}
#: None of these reads or changes a row, and each is refused first where the right is missing.
_ATTEMPTS: Final = {
    "SELECT": "SELECT {column} FROM {table} LIMIT 0",
    "INSERT": "EXPLAIN INSERT INTO {table} () VALUES ()",
    "UPDATE": "UPDATE {table} SET {column} = {column} WHERE FALSE",
    "DELETE": "DELETE FROM {table} WHERE FALSE",
}
_ALL_FOUR: Final = ("SELECT", "INSERT", "UPDATE", "DELETE")
_OF_WRITER: Final = {"rows": ("INSERT",), "barrier": ("SELECT", "INSERT"), "meta": ("SELECT",)}
_OF_RELAY: Final = {"rows": _ALL_FOUR, "relays": _ALL_FOUR, "meta": _ALL_FOUR, "shards": ("SELECT", "UPDATE"), "barrier": _ALL_FOUR}


async def status(connection: Connection, tables: OutboxTables) -> OutboxStatus:
    """See `OutboxStore.status`."""
    about = {**tables.names, "now": NOW}
    found = {state: (number, max(0.0, age / 1e6)) for state, number, age in await _read(connection, _STATUS.format(**about))}
    owners = await _read(connection, _OWNERS.format(**about))
    kinds = await _read(connection, _RELAY_KIND.format(**about))

    def of(state: RowState) -> tuple[int, float | None]:
        return found.get(state, (0, None))

    return OutboxStatus(
        *of(RowState.LOCAL_COMMIT),
        *of(RowState.PREPARED),
        *of(RowState.MESSAGE_ERROR),
        {owner.decode(): int(count) for owner, count in owners},
        kinds[0][0].decode() if kinds else None,
    )


async def parked(connection: Connection, tables: OutboxTables, limit: int, after: int) -> list[Parked]:
    """See `OutboxStore.parked`."""
    statement = _PARKED.format(rows=tables.rows, columns=_COLUMNS, which=f"id > {int(after)}", limit=int(limit))
    return [parked_of(row, is_whole=False) for row in await named(connection, _NAMES, f"{BEGIN}{statement}; COMMIT")]


async def show(connection: Connection, tables: OutboxTables, id: int) -> Parked | None:
    """See `OutboxStore.show`."""
    statement = _PARKED.format(rows=tables.rows, columns=f"{_COLUMNS}, headers, value", which=f"id = {int(id)}", limit=1)
    found = await named(connection, (*_NAMES, "headers", "value"), f"{BEGIN}{statement}; COMMIT")
    return parked_of(found[0], is_whole=True) if found else None


async def requeue(connection: Connection, tables: OutboxTables, rows: Collection[int] | None) -> int:
    """See `OutboxStore.requeue`."""
    index, which = ("by_due", "") if rows is None else ("PRIMARY", f"AND id IN ({numbers(rows)})")
    return await changed(connection, BEGIN + _REQUEUE.format(rows=tables.rows, index=index, which=which))


async def require_writer_rights(connection: Connection, tables: OutboxTables, address: str) -> None:
    """Raise `ConfigurationError` if the user may not write rows and barriers, which is all that a business transaction does."""
    await _require(connection, tables, _OF_WRITER, address)


async def require_relay_rights(connection: Connection, tables: OutboxTables, address: str) -> None:
    """Raise `ConfigurationError` if the user may not do what a relay does."""
    await _require(connection, tables, _OF_RELAY, address)


async def complaints(connection: Connection, tables: OutboxTables, address: str) -> list[str]:
    """Return what is wrong or unwise, one sentence each. Raise `ConfigurationError` as `open` does."""
    if await schema.version(connection, tables.all, OUTBOX) is None:
        return [OUTBOX.not_there(address)]
    await schema.require_tables(connection, tables.all, OUTBOX, address)
    said = await _missing(connection, tables, _OF_RELAY) or [*await _settings(connection), *await _waiting(connection, tables)]
    return [f"{address}: {sentence}" for sentence in said]


async def clean(connection: Connection, tables: OutboxTables, keeping: Keeping, address: str) -> int:
    """Delete rows that need not be kept, barriers that nobody needs, and relays that are gone; return how many."""
    now = await maintenance.believed_now(connection, address)
    deleted = await _clean_rows(connection, tables, 3, "created", _before(now, keeping.retention))
    deleted += await _clean_rows(connection, tables, 4, "next_at", now)
    if keeping.parked is not None:
        deleted += await _clean_rows(connection, tables, 5, "COALESCE(next_at, created)", _before(now, keeping.parked))
    deleted += await _clean_barriers(connection, tables, _before(now, max(keeping.retention, BARRIERS_KEPT)))
    await _change(connection, f"DELETE FROM {tables.relays} WHERE leased_until < {_before(now, 86400.0)}")
    return deleted


async def _clean_rows(connection: Connection, tables: OutboxTables, state: int, since: str, before: str) -> int:
    """Rows of a state whose time `since` is earlier: `next_at` is when a sent row goes, and when a parked one was parked."""
    deleted = 0
    look = _OLD_ROWS.format(rows=tables.rows, state=state, since=since, before=before, at_once=_AT_ONCE)
    while found := await _read(connection, look):
        which = f"r.id IN ({numbers(id for (id,) in found)}) AND r.state = {state}"
        deleted += await _change(connection, f"DELETE r FROM {tables.rows} AS r FORCE INDEX (PRIMARY) WHERE {which}")
    return deleted


async def _clean_barriers(connection: Connection, tables: OutboxTables, before: str) -> int:
    unneeded, deleted = _UNNEEDED.format(rows=tables.rows), 0
    look = _OLD_BARRIERS.format(barrier=tables.barrier, before=before, unneeded=unneeded, at_once=_AT_ONCE)
    while found := await _read(connection, look):
        which = f"b.tx_id IN ({', '.join(literal(tx_id) for (tx_id,) in found)}) AND {unneeded}"
        deleted += await _change(connection, f"DELETE b FROM {tables.barrier} AS b WHERE {which}")
    return deleted


def _before(now: str, seconds: float) -> str:
    return f"{now} - INTERVAL {round(seconds * 1e6)} MICROSECOND"


async def _read(connection: Connection, statement: str) -> list[Any]:
    async with asyncio.timeout(schema.TIMEOUT):
        return await rows_of(connection, f"{BEGIN}{statement}; COMMIT")


async def _change(connection: Connection, statement: str) -> int:
    async with asyncio.timeout(schema.TIMEOUT):
        return await changed(connection, f"{BEGIN}{statement}; COMMIT")


async def _settings(connection: Connection) -> list[str]:
    ((flush, step, format),) = await schema.rows(
        connection, "SELECT @@innodb_flush_log_at_trx_commit, @@auto_increment_increment, @@binlog_format"
    )
    said = []
    if flush != 1:
        said.append(
            f"innodb_flush_log_at_trx_commit is {flush}, so a crash of the server's machine can lose what was committed; set it to 1"
        )
    if step != 1:
        said.append(
            f"auto_increment_increment is {step}, as on servers that take writes side by side: rows that are written through different "
            "servers do not have ids in the order of their commits, so write those of one key through one server"
        )
    if format == "STATEMENT":
        said.append("binlog_format is STATEMENT, which InnoDB refuses under READ COMMITTED, a relay's isolation; set it to MIXED or ROW")
    return said


async def _waiting(connection: Connection, tables: OutboxTables) -> list[str]:
    found, said = await status(connection, tables), []
    if found.waiting and not found.owners and found.relay_kind != "cdc":
        said.append(f"{found.waiting} rows wait and no relay has its lease; start a worker with Outbox, or `ackwise relay --outbox URL`")
    if found.parked:
        said.append(
            f"{found.parked} rows are parked, the oldest for {found.oldest_parked:.0f} s; see `ackwise outbox show URL`, then requeue"
        )
    return said


async def _require(connection: Connection, tables: OutboxTables, needed: Mapping[str, Collection[str]], address: str) -> None:
    if missing := await _missing(connection, tables, needed):
        raise ConfigurationError(f"{address}: {missing[0]}")


async def _missing(connection: Connection, tables: OutboxTables, needed: Mapping[str, Collection[str]]) -> list[str]:
    """One sentence for each table that the user may do less with than is `needed`."""
    said = []
    for what, rights in needed.items():
        table = tables.names[what]
        missing = [
            right for right in rights if not await checking.may(connection, _ATTEMPTS[right].format(table=table, column=_COLUMN_OF[what]))
        ]
        if missing:
            said.append(f"this user has no right to {', '.join(missing)} on {table}; grant it")
    return said
