"""The table `ackwise_cdc`: for each slot, which server it was read on and how far, and the heartbeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import asyncpg

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.replication.slot import Known

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    from ackwise.stores.postgres.tables import Tables

__all__ = ["beat", "ensure", "forget", "recall", "remember"]

_COLUMNS: Final = """
    slot text PRIMARY KEY,
    system_id text NOT NULL,
    timeline int NOT NULL,
    position pg_lsn NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()"""


async def ensure(connection: Connection | PoolConnectionProxy, tables: Tables) -> None:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    if not await connection.fetchval("SELECT to_regclass($1) IS NULL", name):
        return
    try:
        await connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) WITH (fillfactor = 50)")
    except asyncpg.InsufficientPrivilegeError:
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())})"
        raise ConfigurationError(
            f"the table {name} is missing, and this user may not create it; let an owner run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO this user"
        ) from None
    except asyncpg.UniqueViolationError:  # somebody else creates it in this moment
        pass


async def recall(connection: Connection | PoolConnectionProxy, tables: Tables, slot: str) -> Known | None:
    """What is remembered of `slot`."""
    question = f"SELECT system_id, timeline, position::text FROM {tables.named('cdc')} WHERE slot = $1"
    row: Any = await connection.fetchrow(question, slot)
    return None if row is None else Known(*row)


async def remember(connection: Connection | PoolConnectionProxy, tables: Tables, slot: str, known: Known) -> None:
    """Write down which server `slot` is read on, and from where; what another relay has acknowledged there since stays."""
    table = tables.named("cdc")
    statement = f"""
        INSERT INTO {table} AS known (slot, system_id, timeline, position) VALUES ($1, $2, $3, $4::text::pg_lsn)
        ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline, position =
            CASE WHEN (known.system_id, known.timeline) = (excluded.system_id, excluded.timeline)
            THEN greatest(known.position, excluded.position) ELSE excluded.position END"""
    await connection.execute(statement, slot, known.system_id, known.timeline, known.position)


async def beat(connection: Connection | PoolConnectionProxy, tables: Tables, slot: str, position: str) -> int:
    """Write a heartbeat with the acknowledged position; returns how many rows there were for it."""
    statement = f"""
        UPDATE {tables.named("cdc")} SET beats = beats + 1, beat_at = clock_timestamp(),
            position = greatest(position, $2::text::pg_lsn) WHERE slot = $1"""
    return int((await connection.execute(statement, slot, position)).rpartition(" ")[2])


async def forget(connection: Connection | PoolConnectionProxy, tables: Tables, slot: str) -> None:
    """Remember nothing of `slot`, which was dropped on purpose."""
    await connection.execute(f"DELETE FROM {tables.named('cdc')} WHERE slot = $1", slot)
