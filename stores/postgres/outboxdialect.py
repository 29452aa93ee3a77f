"""`Postgres`: what the outbox of PostgreSQL says in other words."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from ackwise.middleware.outbox import RowState
from ackwise.stores.postgres import checking
from ackwise.stores.postgres.tables import Tables
from ackwise.stores.protocol.outboxrows import RowColumns
from ackwise.stores.sql.operation import Packet, Statement, Steps
from ackwise.stores.sql.outbox.dialect import DUE, DUE_COLUMNS, MESSAGE, Around, Dialect
from ackwise.stores.sql.tables import names_of
from ackwise.stores.sql.templates import Placeholders

_COLUMNS: Final = ", ".join(RowColumns._fields)

_WORDS: Final = {
    "now": "clock_timestamp()",
    "later": "clock_timestamp() + :it * interval '1 s'",
    "at": "to_timestamp(:it)",
    "until": "extract(epoch FROM {it} - clock_timestamp())::float8",
    "age": "extract(epoch FROM clock_timestamp() - {it})::float8",
    "epoch": "extract(epoch FROM clock_timestamp())::float8",
    "ms": "extract(epoch FROM {it}) * 1000",
    "among": "= ANY (:it)",
    "locked": "FOR UPDATE",
    # An earlier row of the key that holds it up: one that waits itself, is not due again yet, or is parked because it could not be sent.
    # One moment for the whole statement: a row that became due in the middle of it would be left out, and hold up nothing.
    "blocker": """
SELECT FROM {rows} AS before WHERE before.key_hash = r.key_hash AND before.id < r.id AND before.key_hash IS NOT NULL
    AND (before.attempts > 0 OR before.behind)
    AND ({it} before.state = {LOCAL_COMMIT} AND before.next_at > statement_timestamp() OR before.state = {MESSAGE_ERROR} AND :block_key)""",
    # By id over all shards and not by shard, so that a backlog of any size is read from its beginning only. A row that is blocked is told
    # without its value, and is put `behind` then: it leaves the index that is read here, until what blocks it is sent.
    "pending": f"""
WITH seen AS (
    SELECT id, shard, attempts, created, size::bigint, {MESSAGE},
        key_hash IS NOT NULL AND EXISTS ({{blocker before.behind OR}}) AS is_blocked
    FROM {{rows}} AS r
    WHERE state = {{LOCAL_COMMIT}} AND NOT behind AND shard = ANY (:shards) AND (next_at IS NULL OR next_at <= statement_timestamp())
        AND id <> ALL (:under_way::bigint[]) AND (key_hash IS NULL OR key_hash <> ALL (:blocked::bigint[]))
    ORDER BY id LIMIT :limit
), summed AS (
    SELECT *, sum(CASE WHEN is_blocked THEN 0 ELSE size END) OVER (ORDER BY id) - size AS before_it FROM seen
)
SELECT id, shard, attempts, {{ms created}}, size, is_blocked, topic, CASE WHEN NOT is_blocked THEN value END, message_key, headers,
    partition, message_id
FROM summed WHERE is_blocked OR before_it < :most ORDER BY id""",
    "put_behind": "UPDATE {rows} SET behind = true WHERE id = ANY (:ids::bigint[]) AND state = {LOCAL_COMMIT} AND NOT behind",
    # The net: whatever a row waited behind, it is gone or due. Each key is looked at once, however many rows wait.
    "free": f"""
WITH RECURSIVE keys AS (
    (SELECT key_hash FROM {{rows}} WHERE behind AND key_hash IS NOT NULL ORDER BY key_hash LIMIT 1)
    UNION ALL
    SELECT (SELECT b.key_hash FROM {{rows}} AS b WHERE b.behind AND b.key_hash IS NOT NULL AND b.key_hash > keys.key_hash
        ORDER BY b.key_hash LIMIT 1)
    FROM keys WHERE key_hash IS NOT NULL
)
UPDATE {{rows}} SET behind = false WHERE behind AND key_hash IS NOT NULL AND key_hash IN (
    SELECT key_hash FROM (SELECT key_hash, {2**62} AS id FROM keys) AS r WHERE NOT EXISTS ({{blocker}}))""",
    # Some at a time: if the first of them fails, they are put behind it again.
    "freed": """freed AS (UPDATE {rows} SET behind = false WHERE id IN (
    SELECT b.id FROM (SELECT DISTINCT key_hash FROM {it}) AS e CROSS JOIN LATERAL (
        SELECT id FROM {rows} AS b WHERE b.behind AND b.key_hash IS NOT NULL AND b.key_hash = e.key_hash ORDER BY b.id LIMIT 1000
    ) AS b))
SELECT count(*) FROM ended""",
    "mine": """
ARRAY(SELECT s.shard FROM {shards} AS s JOIN unnest(:mine_shards::smallint[], :mine_tokens::bigint[]) AS mine (shard, token)
    ON s.shard = mine.shard AND s.token = mine.token {it})""",
    "of_mine": "id = ANY (:ids::bigint[]) AND state = {LOCAL_COMMIT} AND shard = ANY ({mine})",
    "deleted": "WITH ended AS (DELETE FROM {rows} WHERE {of_mine} RETURNING key_hash), {freed ended}",
    # A row that is kept holds up none, and is told by no key.
    "kept": """
WITH gone AS (SELECT id, key_hash FROM {rows} WHERE {of_mine} FOR UPDATE), ended AS (
UPDATE {rows} AS r SET state = {GLOBAL_COMMIT}, next_at = {later keep}, cause = NULL, key_hash = NULL, behind = false{it}
FROM gone WHERE r.id = gone.id RETURNING gone.key_hash), {freed ended}""",
    "failed": """
WITH mine AS MATERIALIZED (SELECT {mine FOR SHARE OF s} AS shards), ended AS (
UPDATE {rows} AS r SET attempts = attempts + 1, cause = f.cause, state = f.state, next_at = clock_timestamp() + f.again_in * interval '1 s'
FROM mine, unnest(:id::bigint[], :cause::text[], :state::smallint[], :again_in::float8[]) AS f (id, cause, state, again_in)
WHERE r.id = f.id AND r.state = {LOCAL_COMMIT} AND r.shard = ANY (mine.shards)
RETURNING r.key_hash, r.state), parked AS (SELECT key_hash FROM ended WHERE state = {MESSAGE_ERROR}), {freed parked}""",
    # Those that another instance is being given are passed over.
    "due": "UPDATE {rows} SET next_at = {later lease} WHERE id IN (SELECT id FROM {rows} WHERE "
    + DUE
    + " FOR UPDATE SKIP LOCKED) RETURNING "
    + DUE_COLUMNS,
    # Only the half message that is still open is changed: whoever decided first, decided.
    "answered": """
UPDATE {rows} AS r SET state = a.state, checks = r.checks + a.checks, next_at = clock_timestamp() + a.again_in * interval '1 s',
    cause = a.cause
FROM unnest(:id::bigint[], :state::smallint[], :checks::int[], :again_in::float8[], :cause::text[])
    AS a (id, state, checks, again_in, cause)
WHERE r.id = a.id AND r.state = {PREPARED}""",
    # The ids are given in the order of the rows.
    "prepared": f"""
INSERT INTO {{rows}} ({_COLUMNS}, state, next_at, tx_id, producer_group, barrier_in)
SELECT {_COLUMNS}, {{PREPARED}}, {{later first_check}}, :tx_id, :producer_group, :barrier_in
FROM unnest(:message_id::text[], :shard::smallint[], :topic::text[], :message_key::bytea[], :key_hash::bigint[], :partition::int[],
    :headers::text[], :value::bytea[], :size::int[]) WITH ORDINALITY AS added ({_COLUMNS}, place)
ORDER BY place""",
}

_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_SENDABLE: Final = f"state = {RowState.LOCAL_COMMIT:d}"


class Postgres(Dialect):
    """Each statement is a transaction of its own. What becomes of many rows is one, with arrays."""

    writing = Around((_BEGIN,), ("COMMIT",))
    patient = Around((_BEGIN, "SELECT set_config('lock_timeout', greatest(1, (:wait::float8 * 1000)::int)::text, true)"), ("COMMIT",))
    gave_up = Around(("ROLLBACK",))
    waiting = (f"{_SENDABLE} AND NOT behind", f"{_SENDABLE} AND behind AND key_hash IS NOT NULL")
    has_arrays = puts_behind = takes_at_once = True
    at_least = 200  # they may be blocked

    def __init__(self, tables: Tables, address: str = "") -> None:
        super().__init__(_WORDS, names_of(tables), Placeholders("${}".format, repeats=False))
        self._address = address

    def require_settings(self) -> Steps[None]:
        return checking.require_durable(self._address)

    def may(self, right: str, table: str) -> Packet:
        return [Statement("SELECT has_table_privilege(to_regclass($1), $2)", (self.tables[table], right))]


#: Rows of a transaction that are written as VALUES, which costs the server less than arrays; each number of rows is a statement to prepare.
_FEW: Final = 8

# The ids are given in the order of the rows, which is that of the calls.
_INSERT_FEW: Final = f"INSERT INTO {{rows}} ({_COLUMNS}) VALUES {{values}}"
_INSERT: Final = f"""
INSERT INTO {{rows}} ({_COLUMNS}) SELECT {_COLUMNS}
FROM unnest($1::text[], $2::smallint[], $3::text[], $4::bytea[], $5::bigint[], $6::int[], $7::text[], $8::bytea[], $9::int[])
    WITH ORDINALITY AS added ({_COLUMNS}, place)
ORDER BY place
"""


def inserting(table: str) -> Callable[[Sequence[RowColumns], Packet], Steps[None]]:
    """Return what inserts rows to be sent."""

    def insert(rows: Sequence[RowColumns], before: Packet) -> Steps[None]:
        yield [*before, _insert(table, rows)]

    return insert


def _insert(table: str, rows: Sequence[RowColumns]) -> Statement:
    if len(rows) <= _FEW:
        return Statement(_few(table, len(rows)), [*chain.from_iterable(rows)])
    return Statement(_INSERT.format(rows=table), [*map(list, zip(*rows, strict=True))])


@functools.cache
def _few(table: str, count: int) -> str:
    width = len(RowColumns._fields)
    rows = (", ".join(f"${place}" for place in range(row * width + 1, (row + 1) * width + 1)) for row in range(count))
    return _INSERT_FEW.format(rows=table, values=", ".join(f"({each})" for each in rows))
