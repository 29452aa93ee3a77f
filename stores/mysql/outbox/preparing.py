"""Half messages and barriers of an outbox, on one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from asyncmy.errors import MySQLError

from ackwise.middleware.errors import ConfigurationError, TransactionAborted
from ackwise.middleware.outbox import CheckAnswer, Prepared, RowState, TransactionOutcome
from ackwise.stores.mysql.exchanging import rows_of
from ackwise.stores.mysql.failures import DUPLICATE, is_conflict
from ackwise.stores.mysql.outbox.sql import BEGIN, MESSAGE, NOW, cause, changed, name, named, numbers, require_room, seconds
from ackwise.stores.mysql.outbox.tables import OutboxTables
from ackwise.stores.protocol.outboxliterals import inserts
from ackwise.stores.protocol.outboxrows import DECIDED, RowColumns, prepared_of, state_of

if TYPE_CHECKING:
    from asyncmy.connection import Connection

__all__ = ["answered", "barrier", "database_id", "decide", "due_checks", "prepare", "probe"]

# A plain INSERT and not one that passes over what is there: a session may count that as a row as well.
_BARRIER: Final = "INSERT INTO {barrier} (tx_id, outcome, created) VALUES ({tx_id}, '{outcome}', UTC_TIMESTAMP(6))"
_OUTCOME: Final = "SELECT outcome FROM {barrier} WHERE tx_id = {tx_id}"

_PATIENCE: Final = "SET @ackwise_patience = @@innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = {}; "
_AS_BEFORE: Final = "SET SESSION innodb_lock_wait_timeout = @ackwise_patience"

_DUE: Final = (
    "SELECT id FROM {rows} FORCE INDEX (by_due) WHERE state = 1 AND next_at <= {now} AND {whose} ORDER BY next_at, id LIMIT {limit}"
)
# By their ids, as all who change rows do: who looks into the index first and who looks into it last could wait for each other.
_TAKE: Final = """
SELECT {columns} FROM {rows} FORCE INDEX (PRIMARY) WHERE id IN ({ids}) AND state = 1 AND next_at <= {now} ORDER BY id FOR UPDATE;
UPDATE {rows} FORCE INDEX (PRIMARY) SET next_at = {until} WHERE id IN ({ids}) AND state = 1 AND next_at <= {now};
COMMIT
"""
_NAMES: Final = ("id", "tx_id", "checks", "created_ms", "producer_group", "barrier_in", *MESSAGE)
_COLUMNS: Final = (
    "id, tx_id, checks, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', created) DIV 1000, producer_group, barrier_in, topic, value, message_key, "
    "headers, `partition`, message_id"
)
# Only the half message that is still open is changed: whoever decided first, decided.
_ANSWERED: Final = """
UPDATE {rows} FORCE INDEX (PRIMARY) SET state = {state}, checks = checks + {checks}, next_at = {next_at}, cause = {cause}
WHERE id = {id} AND state = 1
"""
_DECIDED: Final = (
    "UPDATE {rows} FORCE INDEX (by_tx) SET state = {state}, next_at = NULL WHERE tx_id = {tx_id} AND tx_id <> '' AND state = 1"
)


async def database_id(connection: Connection, tables: OutboxTables) -> str:
    """See `BarrierStore.database_id`."""
    ((found,),) = await rows_of(connection, f"SELECT value FROM {tables.meta} WHERE name = 'database_id'")
    return str(found.decode())


async def barrier(connection: Connection, tables: OutboxTables, tx_id: str) -> None:
    """See `BarrierStore.barrier`. The outcome is read as it is now: this transaction may see an older state of the table."""
    if connection.get_autocommit() and not connection.get_transaction_status():
        raise ConfigurationError(
            f"the barrier of {tx_id} has to be in the local transaction, and none is open on the connection; begin one"
        )
    about = {**tables.names, "tx_id": name("tx_id", tx_id)}
    try:
        await rows_of(connection, _BARRIER.format(**about, outcome="C"))
    except MySQLError as error:
        if error.args[0] != DUPLICATE:
            raise
    else:
        return
    if (await rows_of(connection, _OUTCOME.format(**about) + " LOCK IN SHARE MODE"))[0][0] == "C":
        raise TransactionAborted(
            f"the local transaction {tx_id} has committed before, or called its barrier twice; use a new one for each transaction"
        )
    raise TransactionAborted(f"a check-back took the local transaction {tx_id} for rolled back, as it had not begun; nothing of it stays")


async def probe(connection: Connection, tables: OutboxTables, tx_id: str, wait: float) -> TransactionOutcome:
    """See `BarrierStore.probe`. The server waits for whole seconds: less than half of one is none for MariaDB, and one for MySQL."""
    about = {**tables.names, "tx_id": name("tx_id", tx_id)}
    patience = max(round(wait), 0 if "MariaDB" in connection.get_server_info() else 1)
    packet = f"{BEGIN}{_BARRIER.format(**about, outcome='R')}; COMMIT; {_AS_BEFORE}"
    try:
        await rows_of(connection, _PATIENCE.format(patience) + packet)
    except MySQLError as error:
        if error.args[0] != DUPLICATE and not is_conflict(error):
            raise
        # Whoever inserted it has committed if it is there; if it ran longer than we waited, or was undone meanwhile, nobody knows now.
        found = await rows_of(connection, f"ROLLBACK; {_AS_BEFORE}; {BEGIN}{_OUTCOME.format(**about)}; COMMIT")
        if not found:
            return TransactionOutcome.UNKNOWN
        return TransactionOutcome.COMMIT if found[0][0] == "C" else TransactionOutcome.ROLLBACK
    return TransactionOutcome.ROLLBACK


async def prepare(
    connection: Connection,
    tables: OutboxTables,
    rows: Sequence[RowColumns],
    tx_id: str,
    producer_group: str,
    barrier_in: str,
    first_check: float,
    address: str,
) -> None:
    """See `PreparedStore.prepare`."""
    names = (name("tx_id", tx_id), name("producer_group", producer_group), name("barrier_in", barrier_in))
    packets = [packet for _, packet in inserts(tables.rows, rows, f"1, {seconds(first_check)}, {', '.join(names)}")]
    await require_room(connection, packets, rows, address)
    for packet in (BEGIN + packets[0], *packets[1:], "COMMIT"):
        await rows_of(connection, packet)


async def decide(connection: Connection, tables: OutboxTables, tx_id: str, outcome: TransactionOutcome) -> int:
    """See `PreparedStore.decide`."""
    if outcome is TransactionOutcome.UNKNOWN:
        return 0
    statement = _DECIDED.format(rows=tables.rows, state=int(DECIDED[outcome]), tx_id=name("tx_id", tx_id))
    return await changed(connection, f"{BEGIN}{statement}; COMMIT")


async def due_checks(connection: Connection, tables: OutboxTables, producer_group: str | None, limit: int, lease: float) -> list[Prepared]:
    """See `PreparedStore.due_checks`: looked for without a lock, and then taken by whoever comes first."""
    if producer_group is None:
        whose = f"barrier_in = (SELECT value FROM {tables.meta} WHERE name = 'database_id')"
    else:
        whose = f"producer_group = {name('producer_group', producer_group)}"
    look = _DUE.format(rows=tables.rows, now=NOW, whose=whose, limit=int(limit))
    ids = numbers(id for (id,) in await rows_of(connection, f"{BEGIN}{look}; COMMIT"))
    if ids == numbers(()):
        return []
    take = _TAKE.format(
        rows=tables.rows, columns=_COLUMNS, ids=ids, now=_MOMENT, until=f"{_MOMENT} + INTERVAL {round(lease * 1e6)} MICROSECOND"
    )
    taken = await named(connection, _NAMES, f"{BEGIN}SET @ackwise_moment = {NOW}; {take}")
    return sorted((prepared_of(row) for row in taken), key=lambda row: row.id)


#: One moment for two statements: what was due for the first is due for the second, and nothing else is.
_MOMENT: Final = "@ackwise_moment"


async def answered(connection: Connection, tables: OutboxTables, answers: Sequence[CheckAnswer]) -> int:
    """See `PreparedStore.answered`."""
    updates = [_update(tables, answer) for answer in sorted(answers, key=lambda answer: answer.id)]
    return await changed(connection, f"{BEGIN}{'; '.join(updates)}; COMMIT")


def _update(tables: OutboxTables, answer: CheckAnswer) -> str:
    is_unknown = answer.outcome is TransactionOutcome.UNKNOWN
    state = state_of(answer)
    return _ANSWERED.format(
        rows=tables.rows,
        id=int(answer.id),
        state=int(state),
        checks=int(is_unknown),
        next_at=seconds(answer.again_in or 0.0) if state in (RowState.PREPARED, RowState.MESSAGE_ERROR) else "NULL",
        cause=cause(answer.cause) if answer.cause else "NULL",
    )
