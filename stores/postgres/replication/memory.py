"""The table `ackwise_cdc`: for each slot, which server it was read on and how far, and the heartbeat."""

from __future__ import annotations

from typing import Final

from ackwise.middleware.errors import ConfigurationError
from ackwise.stores.postgres.replication.slot import Known
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.sql.operation import Failure, Problem, Statement, Steps

_COLUMNS: Final = """
    slot text PRIMARY KEY,
    system_id text NOT NULL,
    timeline int NOT NULL,
    position pg_lsn NOT NULL,
    beats bigint NOT NULL DEFAULT 0,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()"""


def ensure(tables: Tables) -> Steps[None]:
    """Create the table if it is missing. Raises `ConfigurationError` with the statement if this user may not."""
    name = tables.named("cdc")
    (missing,) = yield [Statement("SELECT to_regclass($1) IS NULL", (name,))]
    if not missing.rows[0][0]:
        return
    try:
        yield [Statement(f"CREATE TABLE IF NOT EXISTS {name} ({_COLUMNS}) WITH (fillfactor = 50)")]
    except Failure as failure:
        if failure.problem is Problem.DUPLICATE:
            return  # somebody else creates it in this moment
        if failure.problem is not Problem.FORBIDDEN:
            raise
        statement = f"CREATE TABLE {name} ({' '.join(_COLUMNS.split())})"
        raise ConfigurationError(
            f"the table {name} is missing, and this user may not create it; let an owner run: {statement}; "
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO this user"
        ) from None


def recall(tables: Tables, slot: str) -> Steps[Known | None]:
    """What is remembered of `slot`."""
    question = f"SELECT system_id, timeline, position::text FROM {tables.named('cdc')} WHERE slot = $1"
    (found,) = yield [Statement(question, (slot,))]
    return Known(*found.rows[0]) if found.rows else None


def remember(tables: Tables, slot: str, known: Known) -> Steps[None]:
    """Write down which server `slot` is read on, and from where; what another relay has acknowledged there since stays."""
    statement = f"""
        INSERT INTO {tables.named("cdc")} AS known (slot, system_id, timeline, position) VALUES ($1, $2, $3, $4::text::pg_lsn)
        ON CONFLICT (slot) DO UPDATE SET system_id = excluded.system_id, timeline = excluded.timeline, position =
            CASE WHEN (known.system_id, known.timeline) = (excluded.system_id, excluded.timeline)
            THEN greatest(known.position, excluded.position) ELSE excluded.position END"""
    yield [Statement(statement, (slot, known.system_id, known.timeline, known.position))]


def beat(tables: Tables, slot: str, position: str) -> Steps[int]:
    """Write a heartbeat with the acknowledged position; returns how many rows there were for it."""
    statement = f"""
        UPDATE {tables.named("cdc")} SET beats = beats + 1, beat_at = clock_timestamp(),
            position = greatest(position, $2::text::pg_lsn) WHERE slot = $1"""
    (beaten,) = yield [Statement(statement, (slot, position))]
    return beaten.changed
