"""Half messages and barriers of an outbox, on one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.outbox import CheckAnswer, Prepared, TransactionOutcome
from ackwise.stores.postgres.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxrows import CAUSE, DECIDED, prepared_of, state_of

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    AnyConnection = Connection | PoolConnectionProxy

__all__ = ["answered", "barrier", "database_id", "decide", "due_checks", "probe"]

_BARRIER: Final = "INSERT INTO {barrier} (tx_id, outcome) VALUES ($1, $2) ON CONFLICT DO NOTHING"
_OUTCOME: Final = "SELECT outcome FROM {barrier} WHERE tx_id = $1"
_DUE: Final = """
UPDATE {rows} SET next_at = clock_timestamp() + $3 * interval '1 s' WHERE id IN (
    SELECT id FROM {rows} WHERE state = 1 AND next_at <= clock_timestamp() AND {whose} ORDER BY next_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING id, topic, value, message_key, headers, partition, message_id, tx_id, checks, producer_group, barrier_in,
    extract(epoch FROM created) * 1000 AS created_ms
"""
_OF_GROUP: Final = "producer_group = $1"
_OF_DATABASE: Final = "barrier_in = (SELECT value FROM {meta} WHERE name = 'database_id') AND $1::text IS NULL"
# Only the half message that is still open is changed: whoever decided first, decided.
_ANSWERED: Final = """
UPDATE {rows} AS r SET state = a.state, checks = r.checks + CASE WHEN a.state IN (1, 5) THEN 1 ELSE 0 END,
    next_at = CASE WHEN a.state IN (1, 5) THEN clock_timestamp() + coalesce(a.again_in, 0) * interval '1 s' END, cause = nullif(a.cause, '')
FROM unnest($1::bigint[], $2::smallint[], $3::float8[], $4::text[]) AS a (id, state, again_in, cause)
WHERE r.id = a.id AND r.state = 1
"""


async def database_id(connection: AnyConnection, tables: OutboxTables) -> str:
    """See `BarrierStore.database_id`."""
    return str(await connection.fetchval(f"SELECT value FROM {tables.meta} WHERE name = 'database_id'"))


async def barrier(connection: AnyConnection, tables: OutboxTables, tx_id: str) -> None:
    """See `BarrierStore.barrier`."""
    if not connection.is_in_transaction():
        raise ConfigurationError(f"the barrier of {tx_id} has to be in the local transaction, and none is open; begin one")
    if (await connection.execute(_BARRIER.format(**tables.names), tx_id, "C")).endswith(" 1"):
        return
    if await connection.fetchval(_OUTCOME.format(**tables.names), tx_id) == "C":
        raise TransactionAborted(
            f"the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
        )
    raise TransactionAborted(f"a check-back took the local transaction {tx_id} for rolled back, as it had not begun; nothing of it stays")


async def probe(connection: AnyConnection, tables: OutboxTables, tx_id: str, wait: float) -> TransactionOutcome:
    """See `BarrierStore.probe`."""
    try:
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(f"SET LOCAL lock_timeout = {max(1, int(wait * 1000))}")
            await connection.execute(_BARRIER.format(**tables.names), tx_id, "R")
            found = await connection.fetchval(_OUTCOME.format(**tables.names), tx_id)
    except asyncpg.LockNotAvailableError:
        return TransactionOutcome.UNKNOWN
    return TransactionOutcome.COMMIT if found == "C" else TransactionOutcome.ROLLBACK


async def decide(connection: AnyConnection, tables: OutboxTables, tx_id: str, outcome: TransactionOutcome) -> int:
    """See `PreparedStore.decide`."""
    if outcome is TransactionOutcome.UNKNOWN:
        return 0
    statement = f"UPDATE {tables.rows} SET state = $2, next_at = NULL WHERE tx_id = $1 AND tx_id <> '' AND state = 1"
    return _count(await connection.execute(statement, tx_id, int(DECIDED[outcome])))


async def due_checks(
    connection: AnyConnection, tables: OutboxTables, producer_group: str | None, limit: int, lease: float
) -> list[Prepared]:
    """See `PreparedStore.due_checks`."""
    whose = _OF_DATABASE if producer_group is None else _OF_GROUP
    statement = _DUE.format(**tables.names, whose=whose.format(**tables.names))
    return sorted(prepared_of(row) for row in await connection.fetch(statement, producer_group, limit, lease))


async def answered(connection: AnyConnection, tables: OutboxTables, answers: Sequence[CheckAnswer]) -> int:
    """See `PreparedStore.answered`."""
    rows: list[tuple[Any, ...]] = [(answer.id, int(state_of(answer)), answer.again_in, answer.cause[:CAUSE]) for answer in answers]
    return _count(await connection.execute(_ANSWERED.format(**tables.names), *zip(*rows, strict=True)))


def _count(status: str) -> int:
    return int(status.rpartition(" ")[2])
